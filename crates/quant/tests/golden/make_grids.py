#!/usr/bin/env python3
"""Write src/grids.rs: the tables of the IQ1, IQ2 and IQ3 formats, packed, from the Python package gguf.

    python make_grids.py ../../src/grids.rs      (gguf 0.17, numpy)
"""

import sys

from gguf import quants

HEAD = """//! Tables of the IQ1, IQ2 and IQ3 formats: numbers that a code stands for, each as an index into the format's few levels.
//!
//! Written by tests/golden/make_grids.py from the Python package gguf. An entry packs 8 indices of 2 bits, or 4 of 3 bits, the first
//! number in the lowest bits.

"""


def table(name, cls, bits):
    cls.init_grid()
    levels = list(cls.grid_map)
    rows = cls.grid.reshape(cls.grid_shape)
    packed = []
    for row in rows:
        value = 0
        for i, number in enumerate(row):
            value |= levels.index(int(number)) << (bits * i)
        packed.append(value)
    lines = []
    for start in range(0, len(packed), 12):
        lines.append("    " + " ".join(f"0x{v:04x}," for v in packed[start : start + 12]))
    return f"#[rustfmt::skip]\npub(crate) const {name}: [u16; {len(packed)}] = [\n" + "\n".join(lines) + "\n];\n"


def main():
    tables = [
        table("IQ2_XXS", quants.IQ2_XXS, 2),
        table("IQ2_XS", quants.IQ2_XS, 2),
        table("IQ2_S", quants.IQ2_S, 2),
        table("IQ3_XXS", quants.IQ3_XXS, 3),
        table("IQ3_S", quants.IQ3_S, 3),
        table("IQ1", quants.IQ1_S, 2),
    ]
    with open(sys.argv[1], "w") as out:
        out.write(HEAD + "\n".join(tables))


if __name__ == "__main__":
    main()
