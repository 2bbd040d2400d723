#!/usr/bin/env python3
"""Runs the example `perf` of latent-marlin and PyTorch's int4 products on the CPU in turn, and prints PyTorch's times with the ratios.

PyTorch: `_weight_int4pack_mm_for_cpu` (group scales and zero points), and a product with the weight decoded to f32 (oneDNN or MKL). Both read copies of the
weight in turn that exceed every cache. Ratios are taken within a round; the median of the rounds is printed.
"""
import argparse
import re
import statistics
import subprocess
import time

import torch

MEMORY = 256 << 20


def median_time(call, seconds=0.4):
    """The median time of calls."""
    call(0)
    times, begin = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        call(len(times))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


class Weights:
    """Random weights, packed, and decoded to f32."""

    def __init__(self, k, n, group):
        pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        codes = torch.randint(0, 16, (n, k), dtype=torch.int32)
        self.group = group
        self.packed = [pack(codes, 1).clone() for _ in range(max(1, 2 * MEMORY // (k * n)))]
        self.scales = torch.rand(k // group, n, 2)
        self.dense = [torch.rand(k, n) for _ in range(max(1, MEMORY // (4 * k * n)))]

    def times(self, m, dtype):
        """Seconds of the int4 product, and of the one in f32."""
        x = torch.rand(m, self.dense[0].shape[0])
        scales, inputs = self.scales.to(dtype), x.to(dtype)
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        int4 = median_time(lambda i: product(inputs, self.packed[i % len(self.packed)], self.group, scales))
        return int4, median_time(lambda i: torch.mm(x, self.dense[i % len(self.dense)]))


def ours(program, threads, k, n, group):
    """Seconds by (rows, type of the inputs), those of decoding to f32, and the first line."""
    out = subprocess.run([program, *map(str, (threads, k, n, group))], capture_output=True, text=True, check=True)
    found = {}
    for line in out.stdout.splitlines():
        if match := re.match(r"int4 +m=(\d+) +(\w+) +\S+ +([\d.]+) µs", line):
            found[int(match[1]), match[2]] = float(match[3]) / 1e6
        if match := re.match(r"int4 +decoded to f32: +([\d.]+) µs", line):
            found["decode"] = float(match[1]) / 1e6
    return found, out.stdout


def main():
    """Prints our table of the last round, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="target/release/examples/perf")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-k", type=int, default=4096)
    parser.add_argument("-n", type=int, default=4096)
    parser.add_argument("-g", "--group", type=int, default=32)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    weights = Weights(args.k, args.n, args.group)
    rounds, table = {}, ""
    for _ in range(args.rounds):
        found, table = ours(args.program, args.threads, args.k, args.n, args.group)
        # PyTorch takes 30 ms per row for f32 inputs.
        for name, dtype, rows in (("f32", torch.float32, (1, 16)), ("bf16", torch.bfloat16, (1, 16, 512))):
            for m in rows:
                int4, dense = weights.times(m, dtype)
                own = found[m, name]
                rounds.setdefault((m, name), []).append((int4, own, int4 / own, (found["decode"] + dense) / own))
    print(table)
    print(f"PyTorch {torch.__version__}, {args.threads} threads, medians of {args.rounds} rounds:")
    for (m, name), values in rounds.items():
        int4, own, ratio, decoded = (statistics.median(column) for column in zip(*values))
        print(
            f"m={m:<4} {name:<5} int4 {1e6 * int4:9.1f} µs, ours {1e6 * own:9.1f} µs: {ratio:5.2f} ×; "
            f"decoding to f32 (ours) and PyTorch's f32 product: {decoded:5.2f} ×"
        )


if __name__ == "__main__":
    main()
