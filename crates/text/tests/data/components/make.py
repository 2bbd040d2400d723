#!/usr/bin/env python3
"""Ids that Python's tokenizers gives for every admitted component of tokenizer.json, into cases.json.

    python make.py      (tokenizers 0.23)

Each case changes some keys of the demo's tokenizer.json, or of a small vocabulary in SentencePiece's manner."""

import json
import pathlib

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "Hello world",
    "  don't  We'LL 12345 6\n\n\tx \r\n y ",
    "naïve cafe\u0301 ÅΩ ﬁ½ ２",
    "日本語 모델 ไทย 🙂 — “x”, (y)!?...",
    "aaaa-bb--c_d e\u0323\u0301\u00a0z\u3000",
    "  ",
    "▁a ▁▁b",
]


def seq(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme, cut):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


NORMALIZERS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
    {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Prepend", "prepend": "x "}, replace({"String": "a"}, "bb"), replace({"String": "."}, ""), replace({"Regex": " {2,}"}, " "),
    seq("normalizers", {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}),
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PRE_TOKENIZERS = [
    byte_level(False, True), byte_level(True, True), byte_level(True, False),
    *[seq("pretokenizers", split({"String": "a"}, behavior), byte_level()) for behavior in BEHAVIORS],
    *[seq("pretokenizers", split({"Regex": r"\s"}, behavior, True), byte_level()) for behavior in BEHAVIORS],
    seq("pretokenizers", split({"Regex": r"[^\s]+|\s+(?!\S)|\s+"}), byte_level(True)),
    seq("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level()),
    seq("pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level()),
    seq("pretokenizers", {"type": "Punctuation", "behavior": "Isolated"}, byte_level()),
    seq("pretokenizers", {"type": "Punctuation", "behavior": "MergedWithPrevious"}, byte_level()),
    seq("pretokenizers", {"type": "Whitespace"}, byte_level()),
    seq("pretokenizers", {"type": "WhitespaceSplit"}, byte_level(True)),
]


def small():
    tokens = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    merges = []
    for word in ["▁", "▁▁", "▁▁▁", "Hello", "▁world", "▁don", "12345", "▁x", "aaaa", "日本語", "bb", "--"]:
        left = ""
        for c in word:
            if c not in tokens:
                tokens.append(c)
            if left:
                merges.append([left, c])
            left += c
            if left not in tokens:
                tokens.append(left)
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges, "dropout": None,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "unk_token": "<unk>", "fuse_unk": False,
            "byte_fallback": False, "ignore_merges": False}


def main():
    demo = json.loads((HERE / "../demo/tokenizer.json").read_text())
    changes = [{"normalizer": n} for n in NORMALIZERS] + [{"pre_tokenizer": p} for p in PRE_TOKENIZERS]
    changes.append({"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": split({"String": "Ġ"}, "MergedWithNext")})
    model = dict(demo["model"], ignore_merges=True)
    changes.append({"model": dict(model, vocab=None, merges=None)})
    spaces = seq("normalizers", {"type": "Prepend", "prepend": "▁"}, replace({"String": " "}, "▁"))
    spm = [{"normalizer": spaces, "pre_tokenizer": None}]
    spm += [{"pre_tokenizer": metaspace(scheme, cut)} for scheme in ["always", "first", "never"] for cut in [True, False]]
    options = [{}, {"fuse_unk": True}, {"byte_fallback": True}, {"unk_token": None}]
    cases = []
    for change in changes:
        file = dict(demo, post_processor=None)
        for key, value in change.items():
            file[key] = model if key == "model" else value
        cases.append({"base": "demo", "change": change, "ids": ids(file)})
    for change in spm:
        for option in options:
            file = dict(demo, post_processor=None, decoder=None, added_tokens=[], normalizer=None)
            file.update(change, model=dict(small(), **option))
            cases.append({"base": "small", "change": change, "options": option, "ids": ids(file)})
    kept = {"texts": TEXTS, "small": small(), "cases": cases}
    (HERE / "cases.json").write_text(json.dumps(kept, ensure_ascii=False, separators=(",", ":")).replace('},{"base"', '},\n{"base"') + "\n")


def ids(file):
    tokenizer = Tokenizer.from_str(json.dumps(file))
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


if __name__ == "__main__":
    main()
