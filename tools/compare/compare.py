#!/usr/bin/env python3
"""Runs `latent bench` and a peer's `llama-bench` on the same file, in alternation, and prints the ratios.

A noisy machine gives either program a good or a bad minute. So both run in every round, each first in every other
round, and what counts is the median over rounds of the ratio within a round.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

Test = tuple[int, int, int]


def bench(command: list[str]) -> dict[Test, dict]:
    """Runs a program that prints a list of objects with llama-bench's field names; the objects by their test."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nfailed ({done.returncode}): {done.stderr.strip()[-2000:]}")
    try:
        rows = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        sys.exit(f"{' '.join(command)}\nprinted no JSON: {error}; it began with {done.stdout[:200]!r}")
    return {(row["n_prompt"], row["n_gen"], row.get("n_depth", 0)): row for row in rows}


def name(test: Test) -> str:
    prompt, generated, depth = test
    kind = f"pp{prompt}" if prompt else f"tg{generated}"
    return f"{kind} @ d{depth}" if depth else kind


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, type=Path, help="path of the peer's llama-bench")
    parser.add_argument("--peer-args", default="", help="further arguments for it, separated by spaces")
    parser.add_argument("--latent", type=Path, default=Path("target/release/latent"), help="path of latent")
    parser.add_argument("-m", "--model", required=True, type=Path, help="the GGUF file that both run")
    parser.add_argument("-p", "--prompt", default="512", help="prompt lengths, with commas")
    parser.add_argument("-n", "--generate", default="128", help="tokens to generate, with commas")
    parser.add_argument("-d", "--depth", default="0", help="tokens in the cache beforehand, with commas")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of either program")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="how often both run")
    args = parser.parse_args()
    for path in (args.peer, args.latent, args.model):
        if not path.exists():
            parser.error(f"{path} does not exist")
    return args


def main() -> None:
    args = arguments()
    tests = ["-p", args.prompt, "-n", args.generate, "-d", args.depth, "-t", str(args.threads)]
    tests += ["-r", "1", "-o", "json", "-m", str(args.model)]
    ours = [str(args.latent), "bench", *tests]
    theirs = [str(args.peer), *tests, *args.peer_args.split()]
    rounds: list[tuple[dict[Test, dict], dict[Test, dict]]] = []
    for number in range(args.rounds):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
        if number % 2 == 0:
            first = bench(ours)
            rounds.append((first, bench(theirs)))
        else:
            first = bench(theirs)
            rounds.append((bench(ours), first))
    print("| test | latent t/s | peer t/s | ratio | lowest to highest | GB/s read |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for test in rounds[0][0]:
        pairs = [(a[test], b[test]) for a, b in rounds if test in b]
        if not pairs:
            print(f"| {name(test)} | the peer did not run it | | | | |")
            continue
        ratios = [a["avg_ts"] / b["avg_ts"] for a, b in pairs]
        latent = statistics.median(a["avg_ts"] for a, _ in pairs)
        peer = statistics.median(b["avg_ts"] for _, b in pairs)
        read = statistics.median(a["read_bandwidth_gb_per_s"] for a, _ in pairs)
        print(
            f"| {name(test)} | {latent:.2f} | {peer:.2f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} | {read:.1f} |"
        )


if __name__ == "__main__":
    main()
