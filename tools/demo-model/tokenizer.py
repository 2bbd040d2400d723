"""The tokenizer: byte-level BPE with DeepSeek-V3's patterns and chat markers, trained on the corpus.

The vocabulary is trained with digits split one by one, so that it holds no token of several digits; the file
then names DeepSeek-V3's own pattern (up to three digits together), which every program that reads such files
knows. Both give the same tokens, as there is nothing longer than a digit to merge into.
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus

BOS, EOS, PAD, USER, ASSISTANT = range(5)
SPECIAL_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
# Places the marker tokens as the chat template of DeepSeek-V3 does.
CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}{% for message in messages %}"
    "{%- if message['role'] == 'system' %}{{ message['content'] }}{% endif %}"
    "{%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)

ONE_DIGIT = r"\p{N}"
UP_TO_THREE_DIGITS = r"\p{N}{1,3}"
CJK = "[一-龥぀-ゟ゠-ヿ]+"
WORDS_AND_SPACES = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
TRAINING_SEED = 5
TRAINING_DOCUMENTS = 6000


def pre_tokenizer(digits: str) -> pre_tokenizers.PreTokenizer:
    """DeepSeek-V3's sequence of splits, with `digits` as the pattern for numbers."""
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (digits, CJK, WORDS_AND_SPACES)]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` tokens, the special ones first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(ONE_DIGIT)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer(UP_TO_THREE_DIGITS)
    tokenizer.decoder = decoders.ByteLevel()
    bos = SPECIAL_TOKENS[BOS]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, BOS)]
    )
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the texts gave {tokenizer.get_vocab_size()} tokens, not {vocab_size}: give more text"
        )
    return tokenizer


def load_or_train(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer at `path`; if there is none, one is trained on the mix and written there.

    A later preparation with another mix must keep the tokens of the checkpoint it goes on from.
    """
    if not path.exists():
        rng = Random(TRAINING_SEED)
        documents = (corpus.training_document(rng, corpus.MIX) for _ in range(TRAINING_DOCUMENTS))
        texts = [text for document in documents for _, text in document.segments]
        train_tokenizer(texts, vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))
