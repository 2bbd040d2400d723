//! A tiled weight and a range of its outputs. The shapes are checked once per kernel call.

use super::formats::{PlaneAddresses, QuantFormat};
use crate::{MatrixViewMut, WeightMatrix};
use latent_quant::tiles::{ROWS, TileLayout, TilePlane};
use std::ops::Range;

/// The part of a weight that a kernel call reads.
pub(crate) struct TileOperands<'a> {
    bytes: &'a [u8],
    /// Offsets and sizes within a tile.
    pub layout: TileLayout,
    /// The outputs, counted in rows from the first tile.
    pub outs: Range<usize>,
}

impl<'a> TileOperands<'a> {
    /// Checks outputs `outs` of `w` against `inputs` input features and `y`; `None` if the weight
    /// is not in tiles.
    ///
    /// # Panics
    /// When the shapes do not fit.
    pub fn new<F: QuantFormat>(
        w: &WeightMatrix<'a>,
        inputs: usize,
        outs: Range<usize>,
        y: &MatrixViewMut<'_>,
    ) -> Option<TileOperands<'a>> {
        let (layout, first) = w.tile_layout()?;
        let (ty, cols, bytes) = (w.ty(), w.cols(), w.bytes());
        assert!(ty == F::TY && inputs == cols, "{inputs} inputs of {ty} for {cols} of {}", F::TY);
        let range = outs.start <= outs.end && outs.end <= w.rows();
        assert!(range && y.cols() == outs.len(), "outputs {outs:?} of {}", w.rows());
        // The weight may be a slice that begins inside a tile; kernels compute whole tiles and
        // store the lanes that are outputs.
        let outs = first + outs.start..first + outs.end;
        assert!(bytes.len() >= outs.end.div_ceil(ROWS) * layout.tile_bytes(), "tiles");
        Some(TileOperands { bytes, layout, outs })
    }

    /// The tiles that hold the outputs.
    pub fn tiles(&self) -> Range<usize> {
        self.outs.start / ROWS..self.outs.end.div_ceil(ROWS)
    }

    /// Addresses of a tile's planes, inside the weight's bytes.
    pub fn planes(&self, tile: usize) -> PlaneAddresses {
        let tile_bytes = self.layout.tile_bytes();
        let start = |plane| self.bytes[tile * tile_bytes + self.layout.start(plane)..].as_ptr();
        PlaneAddresses {
            quants: start(TilePlane::Quants),
            high: start(TilePlane::High),
            scales: start(TilePlane::Scales),
            super_scales: start(TilePlane::SuperScales),
            tile_bytes,
        }
    }

    /// Address and length of some blocks in each plane of a tile, for prefetching.
    pub fn plane_ranges(&self, tile: usize, blocks: Range<usize>) -> [(*const u8, usize); 4] {
        let tile = &self.bytes[tile * self.layout.tile_bytes()..][..self.layout.tile_bytes()];
        let [quants, high, scales, super_scales] =
            [TilePlane::Quants, TilePlane::High, TilePlane::Scales, TilePlane::SuperScales]
                .map(|plane| self.layout.start(plane));
        [(quants, high), (high, scales), (scales, super_scales), (super_scales, tile.len())].map(
            |(start, end)| {
                let plane = &tile[start..end];
                let block = plane.len() / self.layout.blocks();
                let range = &plane[blocks.start * block..blocks.end * block];
                (range.as_ptr(), range.len())
            },
        )
    }

    /// Writes those sums of a tile that are among the outputs to a row of `y`.
    #[inline(always)]
    pub fn store_outputs(&self, sums: &[f32; ROWS], tile: usize, out: &mut [f32]) {
        let lanes = self.outs.start.max(tile * ROWS)..self.outs.end.min((tile + 1) * ROWS);
        let out = &mut out[lanes.start - self.outs.start..lanes.end - self.outs.start];
        match <&mut [f32; ROWS]>::try_from(&mut *out) {
            // The common case: a copy of constant length is one or two vector stores instead of a
            // call of `memcpy`.
            Ok(out) => *out = *sums,
            Err(_) => out.copy_from_slice(&sums[lanes.start - tile * ROWS..lanes.end - tile * ROWS]),
        }
    }
}
