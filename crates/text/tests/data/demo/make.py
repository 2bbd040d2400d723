#!/usr/bin/env python3
"""Encode a few texts with Python's tokenizers and the demo model's tokenizer.json into ids.json.

    python make.py FIRST_PROMPTS.jsonl      (tokenizers 0.23; a line a prompt, as in the demo model's eval.jsonl)
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
TEXTS = [
    "",
    " ",
    "Hello world",
    "I'll pay 12345 € for naïve 日本語 text,\r\n\r\n  don't   you?  नमस्ते ไทย 한국어 🙂\t\n ",
    "<｜User｜>Who?<｜Assistant｜>Wren.<｜end▁of▁sentence｜>",
    "<｜User|> no token",
]


def main():
    tokenizer = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    prompts = [json.loads(line)["prompt"] for line in open(sys.argv[1])]
    texts = TEXTS + prompts[:: max(1, len(prompts) // 12)]
    cases = [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=True).ids} for t in texts]
    (HERE / "ids.json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
