#!/usr/bin/env python3
"""Arithmetic error of the default precision: KL divergence of its next-token probabilities from those of exact precision.

Over the demo model and three small random ones, each once as a prompt and once row by row. Needs `cargo build --release`
and numpy. Prints, per model and way: positions, mean, median and 99th percentile of KL in nats, and how often the most
probable token is the same.
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


def report(name: str, model: Path | None, tokens: list[int]) -> None:
    exact = log_probabilities(model, tokens, "--precision", "exact")
    for way, options in (("prompt", ()), ("row by row", ("--chunk", "1"))):
        found = log_probabilities(model, tokens, *options)
        kl = (np.exp(exact) * (exact - found)).sum(-1)
        same = np.mean(exact.argmax(-1) == found.argmax(-1))
        print(
            f"{name:10} {way:10} {len(kl)} positions: mean {kl.mean():.1e}, median {np.median(kl):.1e}, "
            f"99 % {np.quantile(kl, 0.99):.1e}; same token {100 * same:.1f} %",
            flush=True,
        )


def main() -> None:
    lines = (ROOT / "models/eval.jsonl").read_text().splitlines()
    stories = "".join(case["prompt"] + case["expected"] for case in map(json.loads, lines))[:12000]
    found = json.loads(latent("tokenize", "--json", text=stories))
    found = found["tokens"] if isinstance(found, dict) else found
    ids = [token["id"] if isinstance(token, dict) else token for token in found]
    report("demo", None, ids[:POSITIONS])
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for shape in ("tiny-dense", "tiny-v2", "tiny-v3"):
            model = Path(folder) / f"{shape}.gguf"
            latent("make-model", shape, "Q4_K_M", str(model))
            report(shape, model, [int(token) for token in random.integers(0, 512, POSITIONS)])


if __name__ == "__main__":
    main()
