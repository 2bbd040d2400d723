"""Makes tokenizer.model and ids.json with the Python package sentencepiece (0.2.3), from the source texts of this repository's licences and a few lines."""

import json
import pathlib
import sentencepiece

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[4]
CORPUS = [
    *(line for name in ("LICENSE-MIT", "LICENSE-APACHE") for line in (ROOT / name).read_text().splitlines()),
    *("fn main() { let x = 1; }", "今天天气很好", "Öl und Käse, très bien", "the then  there   these") * 4,
]
TEXTS = [
    "",
    "Hello world",
    " leading and  double   spaces ",
    "the License\nof this\tWork",
    "Öl 今天 xyz 🚀 é",
    "fn main() { let x = 1; }",
    "▁ stands for a space",
    "<s> is text </s>",
]

sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(CORPUS),
    model_prefix=str(HERE / "tokenizer"),
    model_type="bpe",
    vocab_size=420,
    byte_fallback=True,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    split_digits=True,
    character_coverage=0.995,
)
(HERE / "tokenizer.vocab").unlink()
model = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "tokenizer.model"))
cases = [{"text": text, "ids": model.encode(text)} for text in TEXTS]
(HERE / "ids.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")
