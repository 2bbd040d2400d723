"""The exported model in transformers: another implementation must give the same logits and answers."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from corpus import Item
from export import write_folder
from model import Model

ANSWER_TOKENS = 64
# Number of questions for decoding with MTP, which is slow.
MTP_QUESTIONS = 20


def load(folder: Path) -> tuple[Any, Any]:
    """transformers' model in float32, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of one user turn, the assistant's turn opened."""
    turns = [{"role": "user", "content": prompt}]
    encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True)
    # Newer versions of transformers return a mapping.
    return list(encoded if isinstance(encoded, list) else encoded["input_ids"])


def parity(own: Model, work: Path, items: Sequence[Item]) -> None:
    """Largest difference of logits between the training model and transformers, both with float32 weights."""
    folder = work / "hf-float32"
    write_folder(own, work / "tokenizer.json", folder, torch.float32)
    model, tokenizer = load(folder)
    largest, scale = 0.0, 0.0
    for item in items:
        ids = torch.tensor([prompt_ids(tokenizer, item["prompt"])])
        with torch.no_grad():
            theirs, ours = model(ids).logits, own.logits(ids)
        largest = max(largest, (theirs - ours).abs().max().item())
        scale = max(scale, theirs.abs().max().item())
    print(f"largest difference of logits: {largest:.2g}, of logits up to {scale:.1f}, {len(items)} prompts")


def greedy(model: Any, prompt: list[int], **options: Any) -> list[int]:
    """The tokens that greedy decoding adds to a prompt."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=ANSWER_TOKENS,
            do_sample=False,
            **options,
        )
    return output[0, ids.shape[1] :].tolist()


def generation(folder: Path, items: Sequence[Item], results: Path) -> None:
    """Exact match by decoding, the tokens kept in `results`; then whether MTP changes any of them."""
    model, tokenizer = load(folder)
    start = time.time()
    prompts = [prompt_ids(tokenizer, item["prompt"]) for item in items]
    outputs = [greedy(model, prompt) for prompt in prompts]
    texts = [tokenizer.decode(output, skip_special_tokens=True) for output in outputs]
    right = sum(text == item["expected"] for text, item in zip(texts, items))
    print(f"transformers: {right} of {len(items)} right, {time.time() - start:.0f}s")
    results.write_text(json.dumps(outputs), encoding="utf-8")
    # transformers 5.23 looks for an MTP layer only under the number of DeepSeek-V3's (61).
    layer = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\..*"]
    pairs = list(zip(prompts, outputs))[:MTP_QUESTIONS]
    different = sum(greedy(model, prompt, use_mtp=True) != output for prompt, output in pairs)
    print(f"transformers with MTP: {different} of {len(pairs)} outputs differ from plain decoding")
