"""Exact match on the evaluation's questions, without generating a token.

Greedy decoding gives exactly the expected answer if and only if, reading prompt and answer, the likeliest
token at each place of the answer is the answer's own. So one pass over the text is enough.
"""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from corpus import Item
from model import Model
from tokenizer import ASSISTANT, BOS, EOS, PAD, USER

BATCH_TOKENS = 8192


def exact_matches(
    model: Model, tokenizer: Tokenizer, items: Sequence[Item], dtype: torch.dtype = torch.float32
) -> list[bool]:
    """Whether the whole answer, the end of the turn included, is what greedy decoding gives, an item each."""
    prompts, texts = [], []
    for item in items:
        prompt = tokenizer.encode(item["prompt"], add_special_tokens=False).ids
        answer = tokenizer.encode(item["expected"], add_special_tokens=False).ids
        prompts.append([BOS, USER, *prompt, ASSISTANT])
        texts.append([*prompts[-1], *answer, EOS])
    results = [False] * len(items)
    waiting = sorted(range(len(items)), key=lambda index: len(texts[index]))
    model.eval()
    with torch.no_grad():
        while waiting:
            width = len(texts[waiting[-1]])
            rows = max(1, BATCH_TOKENS // width)
            batch, waiting = waiting[-rows:], waiting[:-rows]
            padded = [texts[index] + [PAD] * (width - len(texts[index])) for index in batch]
            likeliest = model.logits(torch.tensor(padded), dtype).argmax(-1)
            for row, index in enumerate(batch):
                start, text = len(prompts[index]), texts[index]
                results[index] = likeliest[row, start - 1 : len(text) - 1].tolist() == text[start:]
    model.train()
    return results


def shares(items: Sequence[Item], results: Sequence[bool]) -> dict[str, float]:
    """The share of right answers of each kind, and of each sort of task."""
    by_kind: dict[str, list[bool]] = {}
    for item, result in zip(items, results):
        by_kind.setdefault(item["kind"], []).append(result)
        if "sub" in item:
            by_kind.setdefault(item["sub"], []).append(result)
    return {kind: round(sum(right) / len(right), 3) for kind, right in by_kind.items()}
