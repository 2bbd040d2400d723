//! A weight in tiles and the outputs that are wanted of it, checked.

use super::formats::{Format, Planes};
use crate::{RowsMut, WeightMatrix};
use latent_quant::tiles::{Plane, ROWS, TileLayout};
use std::ops::Range;

/// What a product reads of a weight.
pub(crate) struct Operands<'a> {
    bytes: &'a [u8],
    /// How its tiles look.
    pub layout: TileLayout,
    /// The outputs, as rows of the tiles.
    pub outs: Range<usize>,
}

impl<'a> Operands<'a> {
    /// Outputs `outs` of `w` for rows of `inputs` numbers, into `y`; none where the weight has no tiles.
    ///
    /// # Panics
    /// When the shapes do not fit.
    pub fn new<F: Format>(
        w: &WeightMatrix<'a>,
        inputs: usize,
        outs: Range<usize>,
        y: &RowsMut<'_>,
    ) -> Option<Operands<'a>> {
        let (layout, first) = w.tile_layout()?;
        let (ty, cols, bytes) = (w.ty(), w.cols(), w.bytes());
        assert!(ty == F::TY && inputs == cols, "{inputs} inputs of {ty} for {cols} of {}", F::TY);
        let range = outs.start <= outs.end && outs.end <= w.rows();
        assert!(range && y.cols() == outs.len(), "outputs {outs:?} of {}", w.rows());
        let outs = first + outs.start..first + outs.end;
        assert!(bytes.len() >= outs.end.div_ceil(ROWS) * layout.tile_bytes(), "tiles");
        Some(Operands { bytes, layout, outs })
    }

    /// The tiles that hold the outputs.
    pub fn tiles(&self) -> Range<usize> {
        self.outs.start / ROWS..self.outs.end.div_ceil(ROWS)
    }

    /// Addresses of a tile's planes.
    pub fn planes(&self, tile: usize) -> Planes {
        let tile_bytes = self.layout.tile_bytes();
        let start = |plane| self.bytes[tile * tile_bytes + self.layout.start(plane)..].as_ptr();
        Planes {
            codes: start(Plane::Codes),
            high: start(Plane::High),
            scales: start(Plane::Scales),
            factors: start(Plane::Factors),
            tile_bytes,
        }
    }

    /// Where some blocks of a tile lie: addresses and bytes, to be asked for.
    pub fn pieces(&self, tile: usize, blocks: Range<usize>) -> [(*const u8, usize); 4] {
        let tile = &self.bytes[tile * self.layout.tile_bytes()..][..self.layout.tile_bytes()];
        let [codes, high, scales, factors] =
            [Plane::Codes, Plane::High, Plane::Scales, Plane::Factors].map(|plane| self.layout.start(plane));
        [(codes, high), (high, scales), (scales, factors), (factors, tile.len())].map(|(start, end)| {
            let plane = &tile[start..end];
            let block = plane.len() / self.layout.blocks();
            let piece = &plane[blocks.start * block..blocks.end * block];
            (piece.as_ptr(), piece.len())
        })
    }

    /// Copies the sums of a tile that are wanted to the outputs of a row.
    #[inline(always)]
    pub fn put(&self, sums: &[f32; ROWS], tile: usize, out: &mut [f32]) {
        let lanes = self.outs.start.max(tile * ROWS)..self.outs.end.min((tile + 1) * ROWS);
        let out = &mut out[lanes.start - self.outs.start..lanes.end - self.outs.start];
        match <&mut [f32; ROWS]>::try_from(&mut *out) {
            // the usual case, and one whose length the compiler knows
            Ok(out) => *out = *sums,
            Err(_) => out.copy_from_slice(&sums[lanes.start - tile * ROWS..lanes.end - tile * ROWS]),
        }
    }
}
