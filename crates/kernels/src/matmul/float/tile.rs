//! Tiles of float weights, and their scales.

use super::formats::FloatFormat;
use crate::WeightMatrix;
use crate::simd::Simd;
use latent_quant::tiles::{ROWS, TileLayout, TilePlane};

/// Inputs per group if the weight has no block scales.
const GROUP: usize = 128;

/// A weight in tiles of a float format.
pub(super) struct FloatMatrix<'a, 'w> {
    w: &'a WeightMatrix<'w>,
    pub layout: TileLayout,
    /// Inputs per group, which share a scale.
    pub group: usize,
}

/// Sixteen weight rows.
#[derive(Clone, Copy)]
pub(super) struct FloatTile<'a> {
    /// The rows' vectors, of 64 bytes.
    pub quants: *const u8,
    /// Initial value of each row's accumulator, if the format has NaN flags.
    nan_flags: *const f32,
    scales: TileScales<'a>,
}

/// Factors of a tile's sums.
#[derive(Clone, Copy)]
enum TileScales<'a> {
    None,
    /// A scale per group of inputs.
    Groups(&'a [f32]),
    Rows(&'a [f32; ROWS]),
}

impl<'a, 'w> FloatMatrix<'a, 'w> {
    /// The weight, and the index of its first row within the tiles; `None` if it is not in tiles.
    #[inline(always)]
    pub(super) fn new<F: FloatFormat>(w: &'a WeightMatrix<'w>) -> Option<(FloatMatrix<'a, 'w>, usize)> {
        let (layout, first) = w.tile_layout()?;
        assert!(w.ty() == F::TY, "{} for {}", w.ty(), F::TY);
        let blocks = w.scales().filter(|scales| !scales.is_per_row(w.cols()));
        Some((FloatMatrix { w, layout, group: blocks.map_or(GROUP, |scales| scales.cols) }, first))
    }

    /// Tile `index`.
    #[inline(always)]
    pub(super) fn tile(&self, index: usize) -> FloatTile<'_> {
        let bytes = &self.w.bytes()[index * self.layout.tile_bytes()..][..self.layout.tile_bytes()];
        FloatTile {
            quants: bytes.as_ptr(),
            nan_flags: bytes[self.layout.start(TilePlane::SuperScales).min(bytes.len())..].as_ptr().cast(),
            scales: match self.w.scales() {
                None => TileScales::None,
                Some(scales) if scales.is_per_row(self.w.cols()) => {
                    // `with_scales` has checked that scales are padded to whole tiles.
                    TileScales::Rows(&scales.numbers.as_chunks().0[index])
                }
                Some(scales) => TileScales::Groups(scales.of_row(index * ROWS, self.w.cols())),
            },
        }
    }
}

impl FloatTile<'_> {
    /// Factor of sums over group `g`, for each of the sixteen rows.
    ///
    /// # Safety
    /// The caller is compiled for the ISA of `L`, and the CPU has it.
    #[inline(always)]
    pub(super) unsafe fn scale<L: Simd, F: FloatFormat>(&self, g: usize) -> L::F32x16 {
        // SAFETY: the rows' scales are sixteen; the ISA by this function's contract.
        unsafe {
            match self.scales {
                TileScales::None => L::splat_f32(F::SCALE),
                TileScales::Groups(scales) => L::splat_f32(scales[g] * F::SCALE),
                TileScales::Rows(scales) => L::mul(L::load_f32(scales.as_ptr()), L::splat_f32(F::SCALE)),
            }
        }
    }

    /// Whether a row of the tile holds a NaN. Only for formats with NaN flags.
    #[inline(always)]
    pub(super) fn holds_nan(&self) -> bool {
        // SAFETY: a tile of a format with NaN flags ends with sixteen of them, and every pattern is
        // a valid float.
        unsafe { self.nan_flags.cast::<[f32; ROWS]>().read_unaligned() }.iter().any(|flag| flag.is_nan())
    }

    /// Initial accumulator of the sixteen outputs.
    ///
    /// # Safety
    /// The caller is compiled for the ISA of `L`, and the CPU has it. The tile is one of the
    /// format.
    #[inline(always)]
    pub(super) unsafe fn init_acc<L: Simd, F: FloatFormat>(&self) -> L::F32x16 {
        // NaN plus anything is NaN, so exactly the outputs of rows with NaN become NaN.
        // SAFETY: a tile of a format with NaN flags ends with sixteen of them; the ISA by this
        // function's contract.
        unsafe { if F::NAN_FLAGS { L::load_f32(self.nan_flags) } else { L::splat_f32(0.0) } }
    }
}
