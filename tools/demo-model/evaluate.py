"""Measurements of a trained model, one a command.

python3 evaluate.py checkpoint             the training model: exact match, perplexity, MTP agreement
python3 evaluate.py parity                 its logits against those of transformers
python3 evaluate.py generate               transformers' own greedy decoding, with and without MTP
python3 evaluate.py llama BIN MODEL.gguf   llama.cpp's server: exact match, MTP drafting, sample texts
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

import measure_llama
import measure_transformers
import ops
from corpus import Item
from data import WORK, DataSet
from model import Model
from scoring import exact_matches, shares
from tokenizer import PAD

EVALUATION = Path(__file__).parent.parent.parent / "models" / "eval.jsonl"
LIST_LENGTHS = ((1, 20), (21, 60), (61, 125))
BATCH_TOKENS = 8192


def load_checkpoint(path: Path, as_exported: bool) -> Model:
    """The training model for float32 arithmetic; `as_exported` rounds the weights as export.py does."""
    weights = torch.load(path)
    if as_exported:
        weights = {k: w if k.endswith("bias") else w.bfloat16().float() for k, w in weights.items()}
    model = Model()
    model.load_state_dict(weights)
    return model.eval()


def print_exact_matches(model: Model, tokenizer: Tokenizer, items: Sequence[Item]) -> None:
    """Right answers: of all questions, of each kind, of lists by their length; and what went wrong."""
    results = exact_matches(model, tokenizer, items)
    print(f"exact match: {sum(results) / len(results):.4f}", shares(items, results))
    for low, high in LIST_LENGTHS:
        right = [result for item, result in zip(items, results) if low <= item.get("n_facts", 0) <= high]
        print(f"  retrieval from {low} to {high} facts: {sum(right)} of {len(right)}")
    for number, (item, result) in enumerate(zip(items, results)):
        if not result:
            print(f"  wrong: {number} {item['kind']}, expected {item['expected']!r}")


def guesses(model: Model, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The model's logits (B, L, vocabulary), and the MTP layer's likeliest tokens for places 2 to L - 1."""
    x = model.trunk(ids, torch.float32)
    logits = F.linear(ops.rms_norm(x, model.norm), model.head)
    hidden = model.mtp_trunk(x[:, :-1], ids[:, 1:], torch.float32)
    guess = F.linear(ops.rms_norm(hidden, model.mtp_norm), model.head)[:, :-1].argmax(-1)
    return logits, guess


def print_text_measures(model: Model, data: DataSet) -> None:
    """Perplexity on held-out documents, and how often the MTP layer's guess is right in the answers."""
    loss, tokens = 0.0, 0
    like_text, like_model, answer_tokens = 0, 0, 0
    model.eval()
    with torch.no_grad():
        for ids, weights in data.batches(np.random.default_rng(0), BATCH_TOKENS):
            logits, guess = guesses(model, ids)
            real = ids[:, 1:] != PAD
            log_probabilities = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
            loss -= log_probabilities[real].sum().item()
            tokens += int(real.sum())
            answers = (weights[:, 2:] == 1) & real[:, 1:]
            like_text += int((guess == ids[:, 2:])[answers].sum())
            like_model += int((guess == logits[:, 1:-1].argmax(-1))[answers].sum())
            answer_tokens += int(answers.sum())
    print(f"held-out perplexity: {np.exp(loss / tokens):.4f} over {tokens} tokens")
    print(
        f"MTP guess equal to the text: {like_text / answer_tokens:.4f}, "
        f"to the model's own choice: {like_model / answer_tokens:.4f}, over {answer_tokens} tokens of answers"
    )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measures a trained model.")
    parser.add_argument("--work", type=Path, default=WORK, help="folder that training and export wrote")
    parser.add_argument("--checkpoint", default="checkpoint.pt", help="checkpoint in the work folder")
    parser.add_argument("--questions", type=Path, default=EVALUATION, help="eval.jsonl or a file like it")
    parser.add_argument("--threads", type=int, default=1, help="threads of a program that runs the model")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("checkpoint", help="exact match, perplexity and MTP agreement of the training model")
    commands.add_parser("parity", help="logits of the training model and of transformers, float32")
    generate = commands.add_parser("generate", help="greedy decoding by transformers, with and without MTP")
    generate.add_argument("--every", type=int, default=5, help="take every so manyth question (default: 5)")
    llama = commands.add_parser("llama", help="exact match, MTP drafting and samples by llama.cpp's server")
    llama.add_argument("bin", type=Path, help="folder with llama-server")
    llama.add_argument("gguf", type=Path, help="the model file")
    llama.add_argument("--port", type=int, default=8391, help="local port for the server (default: 8391)")
    return parser.parse_args()


def main() -> None:
    """Runs the command."""
    options = arguments()
    torch.set_num_threads(options.threads)
    items: list[Item] = [json.loads(line) for line in options.questions.read_text("utf-8").splitlines()]
    checkpoint, hf = options.work / options.checkpoint, options.work / "hf"
    if options.command == "checkpoint":
        model = load_checkpoint(checkpoint, as_exported=True)
        print_exact_matches(model, Tokenizer.from_file(str(hf / "tokenizer.json")), items)
        print_text_measures(model, DataSet(np.load(options.work / "data.npz"), "validation"))
    elif options.command == "parity":
        model = load_checkpoint(checkpoint, as_exported=False)
        measure_transformers.parity(model, options.work, items[::30])
    elif options.command == "generate":
        measure_transformers.generation(hf, items[:: options.every], options.work / "generated.json")
    else:
        server = measure_llama.Launch(options.bin, options.gguf, options.threads, options.port, options.work)
        measure_llama.measure(server, hf, items, options.work / "generated.json")


if __name__ == "__main__":
    main()
