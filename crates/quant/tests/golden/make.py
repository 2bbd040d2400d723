#!/usr/bin/env python3
"""Write golden.bin: blocks of every format that the Python package gguf decodes, and the numbers that it decodes them to.

    python make.py      (gguf 0.17, numpy)

Each record: u32 length of name, name, u32 count of blocks, the blocks, and f32 numbers. Blocks are random, then the same with every
kind of scale: zero, the smallest subnormal, the largest, infinite, NaN, negative. Records "encode:NAME" hold f32 numbers and the bytes that the
package quantises them to, for formats whose quantisation is fixed by its rounding.
"""

import pathlib
import struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, quants

HERE = pathlib.Path(__file__).parent
DECODE = "BF16 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4 TQ1_0 TQ2_0"
DECODE += " IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M"
ENCODE = "BF16 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 MXFP4"
HALVES = [0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00, 0x8000, 0xBC00, 0xFC00]
# Byte offsets of the f16 scales in each format.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "IQ2_XXS": [0], "IQ2_XS": [0],
    "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0],
}  # fmt: skip


def e4m3(code):
    """OCP FP8 E4M3 from its definition: sign, exponent with bias 7, mantissa; 0x7f and 0xff are NaN, it has no infinities."""
    sign, exponent, mantissa = -1 if code >> 7 else 1, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def record(out, name, blocks, raw, numbers):
    out.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<I", blocks))
    out.write(raw.tobytes() + numbers.astype("<f4").tobytes())


def main():
    rng = np.random.default_rng(20)
    with open(HERE / "golden.bin", "wb") as out:
        for name in DECODE.split():
            length, size = GGML_QUANT_SIZES[T[name]]
            few = 64 // length if length < 64 else 1
            plain = 24 if length == 1 else 6
            raw = rng.integers(0, 256, (plain * few + (len(HALVES) if name in SCALES else 0), size), np.uint8)
            if name in ("BF16", "F16"):
                raw = np.concatenate([raw, np.array(HALVES, np.uint16).view(np.uint8).reshape(-1, 2)])
            for i, half in enumerate(HALVES if name in SCALES else []):
                for at in SCALES[name]:
                    raw[plain * few + i, at : at + 2] = np.array([half], np.uint16).view(np.uint8)
            with np.errstate(all="ignore"):
                numbers = quants.dequantize(raw.reshape(1, -1), T[name]).reshape(-1)
            record(out, name, len(raw), raw, numbers)
        codes = np.arange(256, dtype=np.uint8)
        record(out, "F8_E4M3", 256, codes, np.array([e4m3(int(code)) for code in codes], np.float32))
        for i, d in enumerate([1.5, 0.0, 1e-42, -3e37, np.inf]):
            # The package has no decoder for Q8_K. Its formula is d · code.
            codes = rng.integers(0, 256, 256, np.uint8)
            sums = codes.view(np.int8).reshape(16, 16).astype(np.int16).sum(axis=1, dtype=np.int16)
            raw = np.concatenate([np.array([d], "<f4").view(np.uint8), codes, sums.astype("<i2").view(np.uint8)])
            with np.errstate(all="ignore"):
                record(out, "Q8_K", 1, raw, np.float32(d) * codes.view(np.int8).astype(np.float32))
        for name in ENCODE.split():
            length, _ = GGML_QUANT_SIZES[T[name]]
            numbers = rng.standard_normal(length * 8 if length > 1 else 64).astype(np.float32)
            numbers[:length] = 0
            numbers[length : 2 * length] *= 1e-3
            raw = quants.quantize(numbers.reshape(1, -1), T[name])
            record(out, "encode:" + name, len(numbers) // length, np.ascontiguousarray(raw), numbers)


if __name__ == "__main__":
    main()
