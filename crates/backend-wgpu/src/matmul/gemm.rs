//! The text of a GEMM: the form of its tiles, and what multiplies them.

use super::tiles::{GemmTile, PER_THREAD};
use super::wgsl::{ENTRY, constants, section};
use crate::coop_matrix::CoopMatrix;
use std::fmt::Write;

const GEMM: &str = include_str!("wgsl/gemm.wgsl");
const INTEGERS: &str = include_str!("wgsl/gemm_integers.wgsl");
const MATRICES: &str = include_str!("wgsl/gemm_matrices.wgsl");

/// What tiles in workgroup memory hold, and what multiplies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GemmForm {
    /// f32.
    Floats,
    /// f16, multiplied and added in f32.
    Halves,
    /// Packed i8 with scales.
    Integers,
    /// f32 or f16, for cooperative matrices.
    Matrices(CoopMatrix),
}

/// A GEMM.
#[derive(Clone, Copy)]
pub(super) struct Gemm {
    pub(super) tile: GemmTile,
    pub(super) sorted: bool,
    pub(super) form: GemmForm,
    /// Whether a number is added to each weight.
    pub(super) adds: bool,
}

impl Gemm {
    pub(super) fn write(self, source: &mut String) {
        let GemmTile { rows, outputs, .. } = self.tile;
        let inputs = self.form.inputs(self.tile);
        let sizes = [
            ("THREADS", self.form.threads(self.tile)),
            ("TILE_ROWS", rows),
            ("TILE_OUTPUTS", outputs),
            ("TILE_OCTETS", inputs / 8),
            ("TILE_INPUTS", inputs),
        ];
        constants(source, sizes);
        let steps = [("ROW_STEP", rows / PER_THREAD), ("OUTPUT_STEP", outputs / PER_THREAD)];
        if let GemmForm::Matrices(matrix) = self.form {
            matrices(source, self, matrix);
            return;
        }
        constants(source, steps);
        if self.form == GemmForm::Integers {
            source.push_str(if self.adds { "alias Scale = vec2<f32>;\n" } else { "alias Scale = f32;\n" });
            source.push_str(section(INTEGERS, "memory"));
            source.push_str(section(INTEGERS, if self.adds { "adds" } else { "scales" }));
        } else {
            source.push_str(self.form.element());
            source.push_str(section(GEMM, "memory"));
        }
        source.push_str(ENTRY);
        source.push_str(section(GEMM, if self.sorted { "sorted" } else { "per_slot" }));
        source.push_str(section(GEMM, "sums"));
        source.push_str(if self.form == GemmForm::Integers {
            section(INTEGERS, "load")
        } else {
            section(GEMM, "load")
        });
        for i in 0..PER_THREAD {
            let _ = write!(
                source,
                "  if line + {i}u * ROW_STEP < count {{
    store(sum_{i}, result_place(first_row + line + {i}u * ROW_STEP, slot), first + column);
  }}
"
            );
        }
        source.push_str("}\n");
        source.push_str(section(GEMM, if self.sorted { "sorted_places" } else { "places" }));
        source.push_str(section(GEMM, "store"));
    }
}

impl GemmForm {
    /// Inputs per step of a tile. Those in f32 for cooperative matrices are half as many, whose rows have a gap against bank conflicts.
    pub(super) fn inputs(self, tile: GemmTile) -> usize {
        match self {
            GemmForm::Matrices(CoopMatrix { f16: false, .. }) => tile.inputs / 2,
            _ => tile.inputs,
        }
    }

    /// The same, or f32 where inputs could not be quantized.
    pub(super) fn with(self, quantized: bool) -> GemmForm {
        if self == GemmForm::Integers && !quantized { GemmForm::Floats } else { self }
    }

    /// Threads per workgroup.
    pub(super) fn threads(self, tile: GemmTile) -> usize {
        match self {
            GemmForm::Matrices(matrix) => SUBGROUPS * matrix.subgroup,
            _ => tile.threads(),
        }
    }

    /// The element type of tiles, and how it is made of f32. A number beyond f16's range becomes its largest one.
    fn element(self) -> &'static str {
        let f16 = matches!(self, GemmForm::Halves | GemmForm::Matrices(CoopMatrix { f16: true, .. }));
        section(GEMM, if f16 { "halves" } else { "floats" })
    }

    /// Every one, with cooperative matrices of every kind for subgroups of a few sizes.
    #[cfg(test)]
    pub(super) fn all() -> Vec<GemmForm> {
        let mut all = vec![GemmForm::Floats, GemmForm::Halves, GemmForm::Integers];
        for (side, f16) in [(8, false), (8, true), (16, true), (16, false)] {
            all.extend([8, 32, 64].map(|subgroup| GemmForm::Matrices(CoopMatrix { side, f16, subgroup })));
        }
        all
    }

    /// Bytes of workgroup memory.
    #[cfg(test)]
    pub(super) fn memory(self, tile: GemmTile) -> usize {
        let (both, inputs) = (tile.rows + tile.outputs, self.inputs(tile));
        match self {
            GemmForm::Floats => 4 * inputs * both,
            GemmForm::Halves => 2 * inputs * both,
            // with totals of octets of inputs, and up to two numbers for 16 weights
            GemmForm::Integers => {
                inputs * both + 4 * tile.rows * (1 + inputs / 8) + 8 * tile.outputs * inputs / 16
            }
            GemmForm::Matrices(matrix) => {
                let bytes = if matrix.f16 { 2 } else { 4 };
                bytes * (inputs + GAP) * both + 4 * SUBGROUPS * matrix.side * matrix.side
            }
        }
    }
}

/// Subgroups of a workgroup that multiplies cooperative matrices.
const SUBGROUPS: usize = 4;

/// Elements between two rows of a tile for them: rows begin at multiples of 16 bytes, and four of them in different banks.
const GAP: usize = 8;

/// A subgroup has a rectangle of the tile; its sums have variables of their own.
fn matrices(source: &mut String, gemm: Gemm, matrix: CoopMatrix) {
    let CoopMatrix { side, f16, subgroup } = matrix;
    let GemmTile { rows, outputs, .. } = gemm.tile;
    let down = if rows >= 4 * side { 2 } else { 1 };
    let across = SUBGROUPS / down;
    let (high, wide) = (rows / down / side, outputs / across / side);
    let stride = gemm.form.inputs(gemm.tile) + GAP;
    let sizes = [("SIDE", side), ("SUBGROUP", subgroup), ("SUBGROUPS", SUBGROUPS), ("STRIDE", stride)];
    constants(source, sizes);
    constants(source, [("ACROSS", across), ("HIGH", high * side), ("WIDE", wide * side)]);
    let element = if f16 { "f16" } else { "f32" };
    for (name, ty, role) in [("Rows", element, "A"), ("Outputs", element, "B"), ("Sums", "f32", "C")] {
        let _ = writeln!(source, "alias {name} = coop_mat{side}x{side}<{ty}, {role}>;");
    }
    source.push_str(gemm.form.element());
    source.push_str(section(MATRICES, "memory"));
    source.push_str(if gemm.sorted { section(MATRICES, "sorted_memory") } else { "" });
    source.push_str(section(MATRICES, "entry"));
    let begins = if gemm.sorted { section(MATRICES, "sorted") } else { section(GEMM, "per_slot") };
    source.push_str(begins);
    source.push_str(section(MATRICES, "begin"));
    let sums = || (0..high).flat_map(|i| (0..wide).map(move |j| (i, j)));
    for (i, j) in sums() {
        let _ = writeln!(source, "  var sum_{i}_{j} = coopLoadT<Sums>(&results[mine], SIDE);");
    }
    source.push_str(section(MATRICES, "load"));
    for i in 0..high {
        let _ = writeln!(
            source,
            "      let a_{i} = coopLoadT<Rows>(&x_tile[(top + {i}u * SIDE) * STRIDE + k], STRIDE);"
        );
    }
    for j in 0..wide {
        let _ = writeln!(
            source,
            "      let b_{j} = coopLoad<Outputs>(&w_tile[(left + {j}u * SIDE) * STRIDE + k], STRIDE);"
        );
    }
    for (i, j) in sums() {
        let _ = writeln!(source, "      sum_{i}_{j} = coopMultiplyAdd(a_{i}, b_{j}, sum_{i}_{j});");
    }
    source.push_str("    }\n    workgroupBarrier();\n  }\n");
    for (i, j) in sums() {
        let _ = write!(
            source,
            "  coopStoreT(sum_{i}_{j}, &results[mine], SIDE);
  workgroupBarrier();
  store(mine, member, vec2<u32>(top + {i}u * SIDE, left + {j}u * SIDE), vec3<u32>(first_row, slot, count), first);
  workgroupBarrier();
"
        );
    }
    source.push_str("}\n");
    source.push_str(section(GEMM, if gemm.sorted { "sorted_places" } else { "places" }));
    source.push_str(section(MATRICES, "store"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::tiles::GEMM;

    /// What every WebGPU device has: 16 KiB of workgroup memory, 256 threads.
    #[test]
    fn tiles_of_every_form_fit_into_the_smallest_device() {
        for tile in GEMM {
            for form in GemmForm::all() {
                assert!(form.memory(tile) <= 16384 && form.threads(tile) <= 256, "{tile:?} {form:?}");
                let GemmForm::Matrices(CoopMatrix { side, .. }) = form else { continue };
                // rows of tiles, and matrices in them, begin at multiples of 16 bytes
                assert!(form.inputs(tile).is_multiple_of(side) && tile.rows.is_multiple_of(side));
            }
        }
    }
}
