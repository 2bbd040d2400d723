//! Tiles that subgroups multiply as cooperative matrices. Each subgroup computes a rectangle of the
//! results, and each of its sums has its own variable.

use super::wgsl::{constants, section};
use crate::coop_matrix::CoopMatrix;
use std::fmt::Write;

pub(super) const MATRICES: &str = include_str!("wgsl/gemm_matrices.wgsl");

const SUBGROUPS: usize = CoopMatrix::SUBGROUPS;

/// Padding elements between two rows of a tile.
// With 8, rows begin at multiples of 16 bytes, and four consecutive rows begin in different memory
// banks.
const GAP: usize = 8;

#[derive(Clone, Copy)]
pub(super) struct MatrixTile {
    pub(super) rows: usize,
    pub(super) outputs: usize,
    /// Inputs per step.
    pub(super) inputs: usize,
    pub(super) matrix: CoopMatrix,
}

impl MatrixTile {
    /// The numbers of subgroup rectangles down and across, and the numbers of matrices down and
    /// across in each rectangle.
    fn grid(&self) -> ([usize; 2], [usize; 2]) {
        let side = self.matrix.side;
        let down = if self.rows >= 4 * side { 2 } else { 1 };
        let across = SUBGROUPS / down;
        ([down, across], [self.rows / down / side, self.outputs / across / side])
    }

    fn sums(&self) -> impl Iterator<Item = (usize, usize)> {
        let (_, [high, wide]) = self.grid();
        (0..high).flat_map(move |i| (0..wide).map(move |j| (i, j)))
    }

    /// Bytes of workgroup memory with `buffers` tiles of inputs and of weights.
    #[cfg(test)]
    pub(super) fn memory(&self, buffers: usize) -> usize {
        let CoopMatrix { side, f16, .. } = self.matrix;
        let element = if f16 { 2 } else { 4 };
        buffers * element * (self.inputs + GAP) * (self.rows + self.outputs) + 4 * SUBGROUPS * side * side
    }

    /// Appends constants and types.
    pub(super) fn head(&self, source: &mut String) {
        let side = self.matrix.side;
        let ([_, across], [high, wide]) = self.grid();
        source.push_str(&self.matrix.types());
        constants(source, [("SUBGROUP", self.matrix.subgroup), ("STRIDE", self.inputs + GAP)]);
        constants(source, [("ACROSS", across), ("HIGH", high * side), ("WIDE", wide * side)]);
    }

    /// Appends the declarations of the sums, initialized to 0.
    pub(super) fn begin(&self, source: &mut String) {
        source.push_str(section(MATRICES, "begin"));
        for (i, j) in self.sums() {
            let _ = writeln!(source, "  var sum_{i}_{j} = coopLoadT<Sums>(&results[mine], SIDE);");
        }
    }

    /// Appends the loop over the inputs of a step. `buffer` is the index of the tile buffer, as an
    /// expression.
    pub(super) fn multiply(&self, source: &mut String, buffer: &str) {
        let (_, [high, wide]) = self.grid();
        source.push_str("    for (var k = 0u; k < TILE_INPUTS; k += SIDE) {\n");
        // In naga, the suffix T means row-major. Weights have a row per output too, and are loaded
        // column-major, so that the product is with their transpose.
        for i in 0..high {
            let at = format!("({buffer} * TILE_ROWS + top + {i}u * SIDE) * STRIDE + k");
            let _ = writeln!(source, "      let a_{i} = coopLoadT<Rows>(&x_tile[{at}], STRIDE);");
        }
        for j in 0..wide {
            let at = format!("({buffer} * TILE_OUTPUTS + left + {j}u * SIDE) * STRIDE + k");
            let _ = writeln!(source, "      let b_{j} = coopLoad<Outputs>(&w_tile[{at}], STRIDE);");
        }
        for (i, j) in self.sums() {
            let _ = writeln!(source, "      sum_{i}_{j} = coopMultiplyAdd(a_{i}, b_{j}, sum_{i}_{j});");
        }
        source.push_str("    }\n");
    }

    /// Appends the stores of the sums. `to` are the last arguments of the function `store`.
    pub(super) fn end(&self, source: &mut String, to: &str) {
        // One matrix per subgroup at a time: workgroup memory holds no more. The first barrier is
        // before reading what other threads of the subgroup have written, the second before it is
        // overwritten.
        for (i, j) in self.sums() {
            let _ = write!(
                source,
                "  coopStoreT(sum_{i}_{j}, &results[mine], SIDE);
  workgroupBarrier();
  store(mine, member, vec2<u32>(top + {i}u * SIDE, left + {j}u * SIDE), {to});
  workgroupBarrier();
"
            );
        }
    }
}
