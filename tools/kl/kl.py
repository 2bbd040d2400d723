#!/usr/bin/env python3
"""Arithmetic error of the default precision: KL divergence of its next-token probabilities from those of exact precision.

Over the demo model and three small random ones, each once as a prompt and once row by row. Needs `cargo build --release`
and numpy. Prints, per model and way: positions, mean, median and 99th percentile of KL in nats, and how often the most
probable token is the same.

With `cache`: the same of each type of the cache, row by row in exact and in default precision, from exact precision with an f32 cache:
over two chats of many turns with the demo model, by depth, and over the small random ones.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LATENT = ROOT / "target/release/latent"
POSITIONS = 2040


def latent(*arguments: str, text: str | None = None) -> str:
    """What the program prints."""
    done = subprocess.run([LATENT, *arguments], input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"latent {arguments[0]}: {done.stderr[-500:]}")
    return done.stdout


def log_probabilities(model: Path | None, tokens: list[int], *options: str) -> np.ndarray:
    """Of every position, of every token."""
    which = ["-m", str(model)] if model else []
    ids = ",".join(map(str, tokens))
    printed = latent("logits", *which, "--tokens", ids, "--rows", "all", "--json", *options)
    logits = np.array(json.loads(printed)["logits"], dtype=np.float64)
    greatest = logits.max(-1, keepdims=True)
    return logits - greatest - np.log(np.exp(logits - greatest).sum(-1, keepdims=True))


def line(name: str, way: str, exact: np.ndarray, found: np.ndarray) -> None:
    kl = (np.exp(exact) * (exact - found)).sum(-1)
    same = np.mean(exact.argmax(-1) == found.argmax(-1))
    print(
        f"{name:10} {way:18} {len(kl)} positions: mean {kl.mean():.1e}, median {np.median(kl):.1e}, "
        f"99 % {np.quantile(kl, 0.99):.1e}; same token {100 * same:.1f} %",
        flush=True,
    )


def report(name: str, model: Path | None, tokens: list[int]) -> None:
    exact = log_probabilities(model, tokens, "--precision", "exact")
    for way, options in (("prompt", ()), ("row by row", ("--chunk", "1"))):
        line(name, way, exact, log_probabilities(model, tokens, *options))


def report_caches(name: str, model: Path | None, texts: list[list[int]], depths: list[int]) -> None:
    """Positions of all texts together, from each depth to the next."""
    base = [log_probabilities(model, tokens, "--precision", "exact") for tokens in texts]
    for precision in ("exact", "default"):
        for cache in ("f32", "f16", "bf16", "int8"):
            if (precision, cache) == ("exact", "f32"):
                continue
            options = ("--precision", precision, "--cache-type", cache, "--chunk", "1")
            found = [log_probabilities(model, tokens, *options) for tokens in texts]
            for first, end in zip(depths, depths[1:]):
                part = [np.concatenate([rows[first:end] for rows in side]) for side in (base, found)]
                line(f"{name} {first}-{end}", f"{precision} {cache}", *part)


def ids_of(text: str) -> list[int]:
    found = json.loads(latent("tokenize", "--json", text=text))
    found = found["tokens"] if isinstance(found, dict) else found
    return [token["id"] if isinstance(token, dict) else token for token in found]


def chats(cases: list[dict]) -> list[list[int]]:
    """Conversations of as many turns as the demo model's context holds: stories, retrievals and tasks in turn."""
    by_kind = [[case for case in cases if case["kind"] == kind] for kind in ("story", "retrieval", "task")]
    turns = [case for round in zip(*by_kind) for case in round]
    texts = []
    for first in (0, 20):
        said = (f"<｜User｜>{case['prompt']}<｜Assistant｜>{case['expected']}<｜end▁of▁sentence｜>" for case in turns[first:])
        texts.append(ids_of("".join(said))[:POSITIONS])
    return texts


def main() -> None:
    cases = [json.loads(line) for line in (ROOT / "models/eval.jsonl").read_text().splitlines()]
    caches = sys.argv[1:] == ["cache"]
    if caches:
        report_caches("chats", None, chats(cases), [0, 512, 1024, 1536, POSITIONS])
    else:
        stories = "".join(case["prompt"] + case["expected"] for case in cases)[:12000]
        report("demo", None, ids_of(stories)[:POSITIONS])
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for shape in ("tiny-dense", "tiny-v2", "tiny-v3"):
            model = Path(folder) / f"{shape}.gguf"
            latent("make-model", shape, "Q4_K_M", str(model))
            tokens = [int(token) for token in random.integers(0, 512, POSITIONS)]
            if caches:
                report_caches(shape, model, [tokens], [0, POSITIONS])
            else:
                report(shape, model, tokens)


if __name__ == "__main__":
    main()
