"""Writes src/grids.rs: `python make_grids.py > ../../src/grids.rs && rustfmt ../../src/grids.rs` (gguf 0.19.0, numpy).

The grids are facts of the formats: gguf.quants carries them as hex, which this unpacks and packs again,
a row a number: 2 bits a value for the grids of eight, 4 bits a value for the grids of four.
"""

from gguf.quants import IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS

GRIDS = [
    ("IQ1", IQ1_S, "IQ1_S and IQ1_M", 2),
    ("IQ2_XXS", IQ2_XXS, "IQ2_XXS", 2),
    ("IQ2_XS", IQ2_XS, "IQ2_XS", 2),
    ("IQ2_S", IQ2_S, "IQ2_S", 2),
    ("IQ3_XXS", IQ3_XXS, "IQ3_XXS", 4),
    ("IQ3_S", IQ3_S, "IQ3_S", 4),
]

print("""//! The grids of the IQ formats: rows of eight or four small numbers that a code stands for.
//!
//! The packed tables were written by tests/golden/make_grids.py; the compiler unpacks them into the public ones.

/// Unpacks rows of `W` values, `bits` a value, the first in the lowest bits.
const fn unpack<const W: usize, const N: usize>(packed: &[u16; N], bits: usize, values: &[i8]) -> [[i8; W]; N] {
    let mut rows = [[0; W]; N];
    let mut n = 0;
    while n < N {
        let mut i = 0;
        while i < W {
            rows[n][i] = values[(packed[n] >> (bits * i)) as usize & ((1 << bits) - 1)];
            i += 1;
        }
        n += 1;
    }
    rows
}
""")
for name, kind, users, bits in GRIDS:
    kind.init_grid()
    n, width = kind.grid_shape
    values = list(kind.grid_map)
    rows = kind.grid.reshape(n, width)
    words = [sum(values.index(int(v)) << (bits * i) for i, v in enumerate(row)) for row in rows]
    listed = ", ".join(str(v) for v in values)
    print(f"/// Grid of {users}: {n} rows of {width} numbers out of {listed}.")
    print(f"pub static {name}: [[i8; {width}]; {n}] = unpack(&{name}_PACKED, {bits}, &[{listed}]);\n")
    print(f"#[rustfmt::skip]\nconst {name}_PACKED: [u16; {n}] = [")
    for at in range(0, n, 15):
        print("    " + " ".join(f"{w:#x}," for w in words[at : at + 15]))
    print("];\n")
