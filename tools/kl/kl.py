#!/usr/bin/env python3
"""Arithmetic error of the default precision: KL divergence of its next-token probabilities from those of exact precision.

Over the demo model and three small random ones, each once as prompts and once row by row. Positions are those of llama.cpp's
perplexity tool: the second half of chunks of 512 tokens. With `--peer PATH/llama-perplexity` that program is measured against the
same base files. Needs `cargo build --release` and numpy. Prints, per model and way: positions, mean, median and 99th percentile of
KL in nats, and how often the most probable token is the same.

With `--caches`: each type of the cache instead, row by row, in exact and in default precision, against exact precision with a cache of f32, over
two chats of many turns with the demo model, by depth, and over the small random models.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LATENT = ROOT / "target/release/latent"
CHUNK = 512
POSITIONS = 2040
DEMO = ROOT / "models/mla-demo-Q4_K_M.gguf"
# Base files store no log-probability that is further than about this below the largest.
LEAST = -16.0
PEER_WAYS = {
    "prompts": ("-fa", "on"),
    "prompts, -fa off": ("-fa", "off"),
    "row by row": ("-fa", "on", "-ub", "1"),
}


def latent(*arguments: str, text: str | None = None) -> str:
    """Runs `latent` and returns its output."""
    done = subprocess.run([LATENT, *arguments], input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"latent {arguments[0]}: {done.stderr[-500:]}")
    return done.stdout


def write_base(model: Path, tokens: list[int], base: Path) -> None:
    """Writes the base file: log-probabilities of exact precision."""
    ids = ",".join(map(str, tokens))
    how = ("--precision", "exact", "--kl-divergence-base", str(base), "--kl-chunk", str(CHUNK))
    latent("logits", "-m", str(model), "--tokens", ids, *how)


def log_probabilities(model: Path, tokens: list[int], *options: str) -> np.ndarray:
    """Log-probabilities of all tokens at all positions."""
    ids = ",".join(map(str, tokens))
    printed = latent("logits", "-m", str(model), "--tokens", ids, "--rows", "all", "--json", *options)
    logits = np.array(json.loads(printed)["logits"], dtype=np.float64)
    greatest = logits.max(-1, keepdims=True)
    return logits - greatest - np.log(np.exp(logits - greatest).sum(-1, keepdims=True))


def line(name: str, way: str, positions: int, mean: float, median: float, high: float, same: float) -> None:
    print(
        f"{name:10} {way:22} {positions} positions: mean {mean:.1e}, median {median:.1e}, 99 % {high:.1e}; "
        f"same token {same:.1f} %",
        flush=True,
    )


def compare(name: str, way: str, exact: np.ndarray, found: np.ndarray) -> None:
    kl = np.where(exact > LEAST, np.exp(exact) * (exact - found), 0).sum(-1)
    same = 100 * np.mean(exact.argmax(-1) == found.argmax(-1))
    line(name, way, len(kl), kl.mean(), np.median(kl), np.quantile(kl, 0.99), same)


def measure(name: str, model: Path, base: Path) -> None:
    """Compares Latent with the base file, which contains the tokens."""
    for way, options in (("prompts", ()), ("row by row", ("--batch-size", "1"))):
        how = ("-m", str(model), "--kl-divergence-base", str(base), "--json", *options)
        found = json.loads(latent("eval", "kl", *how))
        quantiles, same = found["kl_quantiles"], 100 * found["same_top"]["value"]
        line(name, way, found["positions"], found["kl"]["value"], quantiles["median"], quantiles["p99"], same)


def measure_peer(name: str, model: Path, base: Path, peer: Path, positions: int) -> None:
    """Compares the peer with the base file."""
    command = [peer, "-m", model, "--kl-divergence", "--kl-divergence-base", base]
    words = ("Mean +KLD", "Median +KLD", "99.0% +KLD", "Same top p")
    for way, options in PEER_WAYS.items():
        # The peer sometimes ends before it has printed all results.
        for _ in range(5):
            done = subprocess.run([*map(str, command), *options], capture_output=True, text=True)
            found = [re.search(word + r"\s*:\s*(\S+)", done.stdout) for word in words]
            if all(found):
                line(name, f"peer, {way}", positions, *(float(number[1]) for number in found))
                break
        else:
            print(f"{name:10} peer, {way}: {(done.stderr.strip() or 'it printed no result')[-300:]}", flush=True)


def measure_caches(name: str, model: Path, texts: list[list[int]], depths: list[int]) -> None:
    """Compares cache types, over the positions of all texts between two depths."""
    base = [log_probabilities(model, tokens, "--precision", "exact") for tokens in texts]
    for precision in ("exact", "default"):
        for cache in ("f32", "f16", "bf16", "int8", "q8_0", "fp8", "q4_0"):
            if (precision, cache) == ("exact", "f32"):
                continue
            options = ("--precision", precision, "--cache-type", cache, "--batch-size", "1")
            found = [log_probabilities(model, tokens, *options) for tokens in texts]
            for first, end in zip(depths, depths[1:]):
                sides = [np.concatenate([rows[first:end] for rows in side]) for side in (base, found)]
                compare(f"{name} {first}-{end}", f"{precision} {cache}", *sides)


def ids_of(text: str) -> list[int]:
    found = json.loads(latent("tokenize", "--json", text=text))
    found = found["tokens"] if isinstance(found, dict) else found
    return [token["id"] if isinstance(token, dict) else token for token in found]


def chats(cases: list[dict]) -> list[list[int]]:
    """Conversations that fill the demo model's context, with stories, retrievals and tasks in turn."""
    by_kind = [[case for case in cases if case["kind"] == kind] for kind in ("story", "retrieval", "task")]
    turns = [case for round in zip(*by_kind) for case in round]
    texts = []
    for first in (0, 20):
        said = (f"<｜User｜>{case['prompt']}<｜Assistant｜>{case['expected']}<｜end▁of▁sentence｜>" for case in turns[first:])
        texts.append(ids_of("".join(said))[:POSITIONS])
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, help="path of llama.cpp's llama-perplexity")
    parser.add_argument("--chunks", type=int, default=8, help="chunks of 512 tokens, each of 255 positions [8]")
    parser.add_argument("--caches", action="store_true", help="types of the cache instead")
    args = parser.parse_args()
    count = args.chunks * CHUNK
    said = [json.loads(line) for line in (ROOT / "models/eval.jsonl").read_text().splitlines()]
    ids = ids_of("".join(case["prompt"] + case["expected"] for case in said))[:count]
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        cases = [("demo", DEMO, ids)]
        for shape in ("tiny-dense", "tiny-v2", "tiny-v3"):
            model = Path(folder) / f"{shape}.gguf"
            latent("make-model", shape, "Q4_K_M", str(model))
            cases.append((shape, model, [int(token) for token in random.integers(0, 512, count)]))
        if args.caches:
            measure_caches("chats", DEMO, chats(said), [0, 512, 1024, 1536, POSITIONS])
            for name, model, tokens in cases[1:]:
                measure_caches(name, model, [tokens[:POSITIONS]], [0, POSITIONS])
            return
        for name, model, tokens in cases:
            base = Path(folder) / f"{name}.base"
            write_base(model, tokens, base)
            measure(name, model, base)
            if args.peer:
                measure_peer(name, model, base, args.peer, args.chunks * (CHUNK - 1 - CHUNK // 2))


if __name__ == "__main__":
    main()
