"""A small vocabulary in the form of Kimi-K2's and Moonlight's tiktoken.model, and the ids that tiktoken gives for some texts.

    pip install tiktoken regex
    python make.py

The published vocabulary is not copied: this one is trained here on the texts below, with tiktoken's own trainer. The pattern and the
control tokens behind the ranks are those of the published tokenization_kimi.py."""

import base64
import json

import tiktoken
from tiktoken._educational import bpe_train

HAN = r"[\p{Han}]+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    HAN,
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + SHORT,
    r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + SHORT,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

TRAINING = (
    "The quick brown fox jumps over the lazy dog. the then there these they're we've I'll don't CamelCase "
    "hello Hello HELLO world 123 1234 2024 0000 a b c aa aaa aaaa aaaaaaaa abab ababab     \n\n\n    \t\t  \n"
    "模型 语言 模型 语言 日本語 中文 中文 한국어 naïve café façade über straße !!! ??? ... --- == === (x) {y} [z] \n"
) * 8

TEXTS = [
    "",
    "Hello world",
    "hello  hello   hello",
    "I'll don't THEY'RE we'Ve",
    "CamelCaseText and UPPERlower",
    "模型语言abc模型 日本語です",
    "1234567 12 3",
    "aaaaaaaaaaaaa ababababab aaa",
    "  leading\n\n  and trailing  \n ",
    "e\u0301 cafe\u0301 naïve\u00a0x\u3000y",
    "🙂👩‍👩‍👧 zwj",
    "tabs\t\tand\r\nlines\r\n\r\n",
    "(x)==={y}!!!???...\n\n",
    "<|im_user|>user<|im_middle|>Hi<|im_end|>",
    "<|tool_call_begin|> [BOS][EOS]<|reserved_token_999|>",
    " ",
    "   ",
    "नमस्ते ไทย ㄅㄆ",
]


def main():
    ranks = bpe_train(data=TRAINING, vocab_size=400, pat_str=r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+", visualise=None)
    # the published file has tokens that no order of merges reaches in one way only
    for extra in [b"aaaaaaaaaaaaa", b"bab", b"\xe6\xa8", b" Hello"]:
        ranks.setdefault(extra, len(ranks))
    base = len(ranks)
    names = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 10: "<|im_middle|>", 12: "<|tool_call_begin|>"}
    special = {names.get(i, f"<|reserved_token_{base + i}|>"): base + i for i in range(256)}
    encoding = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    with open("tiktoken.model", "w") as file:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            file.write(f"{base64.b64encode(token).decode()} {rank}\n")
    decoder = {str(base + i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                               "special": name != "<|tool_call_begin|>"} for i, name in names.items()}
    config = {"added_tokens_decoder": decoder, "bos_token": "[BOS]", "eos_token": "[EOS]",
              "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}, "tokenizer_class": "TikTokenTokenizer"}
    with open("tokenizer_config.json", "w") as file:
        json.dump(config, file, indent=1)
    cases = [{"text": text, "ordinary": encoding.encode_ordinary(text), "special": encoding.encode(text, allowed_special="all")}
             for text in TEXTS]
    with open("ids.json", "w") as file:
        json.dump(cases, file, ensure_ascii=False, indent=0)


main()
