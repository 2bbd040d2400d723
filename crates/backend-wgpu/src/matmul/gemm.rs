//! The text of a GEMM shader, for each form of tiles in workgroup memory.

use super::matrix_tile::{MATRICES, MatrixTile};
use super::tile_order::TileOrder;
use super::tiles::{GemmTile, PER_THREAD};
use super::wgsl::{ENTRY, constants, section};
use crate::coop_matrix::CoopMatrix;
use std::fmt::Write;

const GEMM: &str = include_str!("wgsl/gemm.wgsl");
const INTEGERS: &str = include_str!("wgsl/gemm_integers.wgsl");

/// The element type of tiles in workgroup memory, and the instructions that multiply them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum GemmForm {
    F32,
    /// f16, multiplied and added in f32.
    F16,
    /// Packed i8 with scales.
    Integers,
    /// f32 or f16, for cooperative matrices.
    Matrices(CoopMatrix),
}

#[derive(Clone, Copy)]
pub(super) struct GemmShader {
    pub(super) tile: GemmTile,
    pub(super) sorted: bool,
    pub(super) form: GemmForm,
    /// Whether the format adds a minimum to each weight.
    pub(super) adds: bool,
}

impl GemmShader {
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
        let order = TileOrder {
            units: self.form.row_units(inputs),
            words: self.form.row_words(inputs),
            steps: [rows / PER_THREAD, outputs / PER_THREAD],
        };
        order.head(source);
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
        if self.form == GemmForm::Integers {
            source.push_str(section(INTEGERS, "load"));
            order.read(source, "half * 2u + i", ["", ""], "");
            source.push_str(section(INTEGERS, "multiply"));
        } else {
            source.push_str(section(GEMM, "load"));
            order.multiply(source, ["", ""]);
            // The next step overwrites the tiles, which all threads must have read before.
            source.push_str("    workgroupBarrier();\n  }\n");
        }
        // Tiles of f16 hold weights times this factor: see `halves` in `gemm.wgsl`.
        let back = if self.form == GemmForm::F16 { " / WEIGHT_FACTOR" } else { "" };
        for i in 0..PER_THREAD {
            let _ = write!(
                source,
                "  if line + {i}u * ROW_STEP < count {{
    store(sum_{i}{back}, result_place(first_row + line + {i}u * ROW_STEP, slot), first + column);
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
    /// Inputs per step of a tile.
    pub(super) fn inputs(self, tile: GemmTile) -> usize {
        match self {
            // Half as many, since rows of matrix tiles are padded and would exceed 16 KiB in f32.
            GemmForm::Matrices(CoopMatrix { f16: false, .. }) => tile.inputs / 2,
            _ => tile.inputs,
        }
    }

    /// This form, or f32 if inputs could not be quantized.
    pub(super) fn with(self, quantized: bool) -> GemmForm {
        if self == GemmForm::Integers && !quantized { GemmForm::F32 } else { self }
    }

    /// Units of a row of `inputs` inputs. A thread reads and writes one unit at a time: four
    /// floats, or eight integers.
    fn row_units(self, inputs: usize) -> usize {
        if self == GemmForm::Integers { inputs / 8 } else { inputs / 4 }
    }

    /// 4-byte words of a row of `inputs` inputs.
    fn row_words(self, inputs: usize) -> usize {
        match self {
            GemmForm::F16 => inputs / 2,
            GemmForm::Integers => inputs / 4,
            // Not used for matrices, whose tiles have another layout.
            GemmForm::F32 | GemmForm::Matrices(_) => inputs,
        }
    }

    /// Threads per workgroup.
    pub(super) fn threads(self, tile: GemmTile) -> usize {
        match self {
            GemmForm::Matrices(matrix) => matrix.threads(),
            _ => tile.threads(),
        }
    }

    /// WGSL with the element type of tiles and the conversion from f32. Numbers beyond the range of
    /// f16 are clamped.
    pub(super) fn element(self) -> &'static str {
        let f16 = matches!(self, GemmForm::F16 | GemmForm::Matrices(CoopMatrix { f16: true, .. }));
        section(GEMM, if f16 { "halves" } else { "floats" })
    }

    /// All forms, with every kind of cooperative matrices for some subgroup sizes.
    #[cfg(test)]
    pub(super) fn all() -> Vec<GemmForm> {
        let mut all = vec![GemmForm::F32, GemmForm::F16, GemmForm::Integers];
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
            GemmForm::F32 => 4 * inputs * both,
            GemmForm::F16 => 2 * inputs * both,
            // Including totals of octets of inputs, and up to two floats per 16 weights.
            GemmForm::Integers => {
                inputs * both + 4 * tile.rows * (1 + inputs / 8) + 8 * tile.outputs * inputs / 16
            }
            GemmForm::Matrices(matrix) => {
                MatrixTile { rows: tile.rows, outputs: tile.outputs, inputs, matrix }.memory(1)
            }
        }
    }
}

/// Appends the kernel with cooperative matrices.
fn matrices(source: &mut String, gemm: GemmShader, matrix: CoopMatrix) {
    let tile = MatrixTile {
        rows: gemm.tile.rows,
        outputs: gemm.tile.outputs,
        inputs: gemm.form.inputs(gemm.tile),
        matrix,
    };
    tile.head(source);
    source.push_str(gemm.form.element());
    source.push_str(section(MATRICES, "memory"));
    source.push_str(section(MATRICES, "stash"));
    source.push_str(if gemm.sorted { section(MATRICES, "sorted_memory") } else { "" });
    source.push_str(section(MATRICES, "entry"));
    let begins = if gemm.sorted { section(MATRICES, "sorted") } else { section(GEMM, "per_slot") };
    source.push_str(begins);
    source.push_str(section(MATRICES, "first"));
    tile.begin(source);
    source.push_str(section(MATRICES, "load"));
    tile.multiply(source, "0u");
    // The next step overwrites the tiles, which all threads must have read before.
    source.push_str("    workgroupBarrier();\n  }\n");
    tile.end(source, "vec3<u32>(first_row, slot, count), first");
    source.push_str("}\n");
    source.push_str(section(GEMM, if gemm.sorted { "sorted_places" } else { "places" }));
    source.push_str(section(MATRICES, "store"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::tiles::GEMM;

    /// WebGPU guarantees 16 KiB of workgroup memory and 256 threads.
    #[test]
    fn tiles_of_every_form_fit_into_the_smallest_device() {
        for tile in GEMM {
            for form in GemmForm::all() {
                assert!(form.memory(tile) <= 16384 && form.threads(tile) <= 256, "{tile:?} {form:?}");
                let GemmForm::Matrices(CoopMatrix { side, .. }) = form else { continue };
                // Rows of tiles, and matrices in them, begin at multiples of 16 bytes.
                assert!(form.inputs(tile).is_multiple_of(side) && tile.rows.is_multiple_of(side));
            }
        }
    }
}
