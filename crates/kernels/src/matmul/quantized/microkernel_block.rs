//! Operands of one microkernel block.

use crate::activation::Q8Block;
use crate::matmul::scratch::CacheLine;

/// Input rows per microkernel block.
pub(super) const MR: usize = 4;

/// [`QuantKind`](super::formats::QuantKind) as a const generic argument.
pub(super) const AFFINE: u8 = 0;
pub(super) const SYMMETRIC: u8 = 1;
pub(super) const CONST_ZERO: u8 = 2;

/// What one microkernel block multiplies: unpacked sub-blocks, and as many input blocks of [`MR`] rows.
pub(super) struct MicrokernelBlock<'a> {
    /// Lines of the first sub-block.
    pub lines: *const CacheLine,
    pub lines_per_sub_block: usize,
    pub sub_blocks: usize,
    /// How far −128 · Σ inputs is shifted right to become −zero point · Σ inputs.
    pub shift: u32,
    /// First input block of each row.
    pub x: &'a [*const Q8Block; MR],
    /// The same of the next block of rows, which is only prefetched.
    pub next: &'a [*const Q8Block; MR],
    /// An accumulator per row and tile.
    pub sums: *mut CacheLine,
}
