#!/usr/bin/env python3
"""Runs `latent bench` and the `llama-bench` of llama.cpp or ik_llama.cpp on the same file, in alternation, and prints ratios and
shares of the limit.

A noisy machine gives each program good and bad minutes. So all run in every round, a different one first each time,
and what counts is the median over rounds of the ratio within a round.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

# Prompt length, generated tokens, cached tokens before the test.
Test = tuple[int, int, int]
Results = dict[Test, dict]

# Flags with which each peer runs such models best. The caller may override them.
DEFAULTS = {
    "llama.cpp": {"-fa": "1"},
    # -mla 3: absorbed for few rows, expanded for prompts. -fmoe: fused gate and up of experts.
    "ik_llama.cpp": {"-mla": "3", "-fa": "1", "-fmoe": "1"},
}


def name(test: Test) -> str:
    prompt, generated, depth = test
    kind = f"pp{prompt}" if prompt else f"tg{generated}"
    return f"{kind} @ d{depth}" if depth else kind


@dataclass
class Tests:
    """The measurements: each prompt length and each number of generated tokens, at each depth."""

    prompts: list[int]
    generated: list[int]
    depths: list[int]

    def all(self) -> list[Test]:
        lengths = [(prompt, 0) for prompt in self.prompts if prompt] + [(0, count) for count in self.generated if count]
        return [(*length, depth) for depth in self.depths for length in lengths]

    def for_llama_bench(self) -> list[str]:
        """Flags of llama.cpp and Latent."""
        return ["-p", joined(self.prompts), "-n", joined(self.generated), "-d", joined(self.depths)]

    def for_ik(self) -> list[str]:
        """ik_llama.cpp has `-gp DEPTH,TOKENS` instead of a depth: only the tokens after the prompt are timed."""
        options = ["-p", joined(self.prompts), "-n", joined(self.generated)] if 0 in self.depths else ["-p", "0", "-n", "0"]
        for depth in filter(None, self.depths):
            for count in filter(None, self.generated):
                options += ["-gp", f"{depth},{count}"]
        return options


def joined(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@dataclass
class Program:
    """One of the programs: its command, and its results in each round."""

    name: str
    command: list[str]
    kind: str
    rounds: list[Results] = field(default_factory=list)

    def run(self) -> Results:
        done = subprocess.run(self.command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{shlex.join(self.command)}\nfailed ({done.returncode}): {done.stderr.strip()[-2000:]}")
        # ik_llama.cpp prints other lines before the JSON list.
        start = re.search(r"^\[", done.stdout, re.MULTILINE)
        try:
            rows = json.loads(done.stdout[start.start() if start else 0 :])
        except json.JSONDecodeError as error:
            sys.exit(f"{shlex.join(self.command)}\nprinted no JSON: {error}; it began with {done.stdout[:200]!r}")
        return {test_of(row): row for row in rows}

    def speeds(self, test: Test) -> list[float | None]:
        """Tokens per second of each round, or None if the program did not run the test."""
        return [results[test]["avg_ts"] if test in results else None for results in self.rounds]


class CpuClock:
    """CPU time of other processes, in cores: the machine's time without that of finished children."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self.stat = stat
        self.start = self.read()

    def read(self) -> tuple[float, float, float]:
        """Wall time, the machine's busy time, and the CPU time of this process and its children, in seconds."""
        fields = self.stat.read_text().split("\n", 1)[0].split()[1:]
        # user, nice, system, irq, softirq, steal. Time taken by other guests counts, iowait does
        # not.
        busy = sum(int(fields[index]) for index in (0, 1, 2, 5, 6, 7)) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, sum(os.times()[:4])

    def others(self) -> float:
        """Cores that other processes kept busy since the start."""
        wall, busy, own = (now - before for now, before in zip(self.read(), self.start))
        return max(0.0, busy - own) / max(wall, 1e-9)


def clock() -> CpuClock | None:
    """Returns a clock, or None if the system does not report CPU times."""
    try:
        return CpuClock()
    except (OSError, ValueError, IndexError):
        return None


def measure(programs: list[Program], rounds: int, limit: float) -> list[float | None]:
    """Runs until `rounds` rounds were undisturbed, at most three times as many.

    Returns the cores that other processes used in each round.
    """
    others: list[float | None] = []
    kept = 0
    while kept < rounds and len(others) < 3 * rounds:
        print(f"round {kept + 1} of {rounds}", file=sys.stderr)
        first = kept % len(programs)
        started = clock()
        results = [(program, program.run()) for program in programs[first:] + programs[:first]]
        others.append(started.others() if started else None)
        if others[-1] is not None and others[-1] > limit:
            print(f"discarded: other processes used {others[-1]:.2f} cores, more than {limit}", file=sys.stderr)
            continue
        kept += 1
        for program, result in results:
            program.rounds.append(result)
    if not kept:
        sys.exit(f"all {len(others)} rounds were disturbed: end other programs, or raise --others (now {limit} cores)")
    return others


def interval(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def test_of(row: dict) -> Test:
    prompt, generated = int(row["n_prompt"]), int(row["n_gen"])
    if prompt and generated:
        # A row of ik_llama.cpp's `-gp`.
        return (0, generated, prompt)
    return (prompt, generated, int(row.get("n_depth", 0)))


def kind_of(path: Path) -> str:
    """Whether a llama-bench is that of llama.cpp or ik_llama.cpp, which has the flag -mla."""
    done = subprocess.run([str(path), "--help"], capture_output=True, text=True)
    if "--n-prompt" not in done.stdout + done.stderr:
        sys.exit(f"{path} is not llama-bench: its --help does not list --n-prompt")
    return "ik_llama.cpp" if "-mla" in done.stdout + done.stderr else "llama.cpp"


def peer(text: str, tests: Tests, common: list[str]) -> Program:
    """Parses a peer of the command line: `[NAME=]PATH [ARGUMENT…]`."""
    first, *given = shlex.split(text)
    label, path = re.fullmatch(r"(?:([^=/]+)=)?(.+)", first).groups()
    if not Path(path).is_file():
        sys.exit(f"{path} does not exist")
    kind = kind_of(Path(path))
    options = tests.for_ik() if kind == "ik_llama.cpp" else tests.for_llama_bench()
    defaults = [word for option, value in DEFAULTS[kind].items() if option not in given for word in (option, value)]
    return Program(label or kind, [path, *options, *common, *defaults, *given], kind)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peer",
        required=True,
        action="append",
        metavar="[NAME=]PATH [ARGUMENT…]",
        help="a llama-bench with further arguments, in quotes; may be repeated: --peer 'ik-rtr=ik/llama-bench -rtr 1'",
    )
    parser.add_argument("--latent", default="target/release/latent", help="latent with further arguments: 'latent --isa avx2'")
    parser.add_argument("-m", "--model", required=True, type=Path, help="the GGUF file that all run")
    parser.add_argument("-p", "--prompt", default="512", type=numbers, help="prompt lengths, with commas")
    parser.add_argument("-n", "--generate", default="128", type=numbers, help="tokens to generate, with commas")
    parser.add_argument("-d", "--depth", default="0", type=numbers, help="tokens in the cache beforehand, with commas")
    parser.add_argument("-t", "--threads", type=int, default=2, help="threads of each program")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="how often all run")
    parser.add_argument(
        "--others", type=float, default=0.1, help="cores that other processes may use in a round before it is discarded"
    )
    parser.add_argument("--json", type=Path, help="also write every figure of every round to this file")
    args = parser.parse_args()
    if not args.model.exists():
        parser.error(f"{args.model} does not exist")
    return args


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def ours(text: str, tests: Tests, common: list[str]) -> Program:
    path, *given = shlex.split(text)
    if not Path(path).is_file():
        sys.exit(f"{path} does not exist")
    return Program("latent", [path, "bench", *tests.for_llama_bench(), *common, *given], "latent")


def table(latent: Program, peers: list[Program], tests: list[Test]) -> None:
    print("| test | program | t/s | of the limit | latent ÷ it | lowest to highest | limit t/s | GB/s read |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for test in tests:
        own = [results[test] for results in latent.rounds]
        read = statistics.median(row["read_bandwidth_gb_per_s"] for row in own)
        speed = statistics.median(row["avg_ts"] for row in own)
        share = statistics.median(row["of_roofline"] for row in own)
        limit = statistics.median(row["roofline_ts"] for row in own)
        spread = interval([row["avg_ts"] for row in own])
        print(f"| {name(test)} | latent | {speed:.2f} ({spread}) | {share:.0%} | | | {limit:.2f} | {read:.1f} |")
        for program in peers:
            pairs = [(row, theirs) for row, theirs in zip(own, program.speeds(test)) if theirs]
            if not pairs:
                print(f"| {name(test)} | {program.name} | cannot | | | | | |")
                continue
            ratios = [row["avg_ts"] / theirs for row, theirs in pairs]
            # The limit depends only on machine and file, and was measured in the same round.
            share = statistics.median(theirs / row["roofline_ts"] for row, theirs in pairs)
            speed = statistics.median(theirs for _, theirs in pairs)
            print(
                f"| {name(test)} | {program.name} | {speed:.2f} ({interval([theirs for _, theirs in pairs])}) | {share:.0%} | {statistics.median(ratios):.2f} "
                f"| {interval(ratios)} | | |"
            )


def main() -> None:
    args = arguments()
    tests = Tests(args.prompt, args.generate, args.depth)
    common = ["-t", str(args.threads), "-r", "1", "-o", "json", "-m", str(args.model)]
    latent = ours(args.latent, tests, common)
    programs = [latent, *(peer(text, tests, common) for text in args.peer)]
    print("warm-up", file=sys.stderr)
    for program in programs:
        program.run()
    others = measure(programs, args.rounds, args.others)
    table(latent, programs[1:], tests.all())
    kept = len(latent.rounds)
    known = [cores for cores in others if cores is not None]
    print(f"\n{kept} of {len(others)} rounds kept, after a warm-up; {len(others) - kept} discarded as disturbed")
    if known:
        print(f"other processes used {interval(known)} cores; more than {args.others} discards a round")
    else:
        print("CPU time of other processes is not known on this system: no round was discarded")
    if kept < args.rounds:
        print(f"fewer rounds than the {args.rounds} asked for: run it again on a quiet machine")
    if args.json:
        figures = [{"name": p.name, "command": p.command, "rounds": [list(r.values()) for r in p.rounds]} for p in programs]
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
