//! Operands of one microkernel block.

use crate::activation::Q8Block;
use crate::matmul::scratch::CacheLine;

/// Input rows per microkernel block.
// With three tiles, twelve independent accumulators hide the latency of a dot product: 68 % of the
// int8 limit, 64 % with 4 × 2, 58 % with 8 × 1 (Xeon).
// measured: docs/notes/gemv-and-gemm.md "Registers and accumulators"
pub(super) const MR: usize = 4;

/// [`QuantKind`](super::formats::QuantKind) as a const generic argument. Microkernels are generic
/// over this instead of the format: one per kind, not per format, is compiled.
pub(super) const AFFINE: u8 = 0;
pub(super) const SYMMETRIC: u8 = 1;
pub(super) const CONST_ZERO: u8 = 2;

/// Operands of one microkernel block: unpacked sub-blocks, and as many input blocks of [`MR`] rows.
pub(super) struct MicrokernelBlock<'a> {
    /// Lines of the first sub-block.
    pub lines: *const CacheLine,
    pub lines_per_sub_block: usize,
    pub sub_blocks: usize,
    /// How far −128 · Σ inputs is shifted right to become −zero point · Σ inputs.
    pub shift: u32,
    /// First input block of each row.
    pub x: &'a [*const Q8Block; MR],
    /// First input block of each row of the next block of rows, for prefetching.
    pub next: &'a [*const Q8Block; MR],
    /// An accumulator per row and tile.
    pub sums: *mut CacheLine,
}
