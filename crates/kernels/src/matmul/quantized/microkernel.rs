//! The GEMM microkernel: a block of input rows × unpacked tiles in registers, compiled once for all
//! formats of one [`QuantKind`](super::formats::QuantKind).

use super::dots::dots;
use super::formats::{QuantFormat, QuantKind};
use super::microkernel_block::{AFFINE, MR, MicrokernelBlock, SYMMETRIC};
use super::operands::TileOperands;
use super::prefetch_queue::PrefetchQueue;
#[cfg(target_arch = "x86_64")]
use super::{narrow, narrow_avx2};
use crate::activation::{Q8_BLOCK, Q8Block};
#[cfg(target_arch = "x86_64")]
use crate::cpu_vendor::CpuVendor;
use crate::matmul::args::input_row;
use crate::matmul::scratch::CacheLine;
use crate::simd::{Simd, portable};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use crate::{MatrixViewMut, Q8Rows};
use std::ops::Range;

/// GEMM of one ISA.
pub(super) trait QuantGemm: Simd + Sized {
    /// Tiles per group: at most [`MAX_TILES`](super::prefetch_queue::MAX_TILES).
    const TILES: usize;

    /// Whether products of pairs are added in 16 bits if the range of the quants allows it
    /// (`narrow`).
    const NARROW: bool = false;

    /// Minimum batch size for which unpacking to memory pays off.
    fn min_rows<F: QuantFormat>() -> usize;

    /// Biases signed quants of a small range by the constant zero point of the
    /// [`NARROW`](Self::NARROW) kernel.
    ///
    /// # Safety
    /// The CPU has the ISA, and the caller is compiled for it.
    #[inline(always)]
    unsafe fn bias16(quants: Self::I8x64) -> Self::I8x64 {
        quants
    }

    /// Stores for each output the sum of the magnitudes of a sub-block's negative quants. The
    /// [`NARROW`](Self::NARROW) kernel for full bytes adds it; other kernels do not need it.
    ///
    /// # Safety
    /// The CPU has the ISA, and the caller is compiled for it.
    #[inline(always)]
    unsafe fn store_negatives(_quants: &[Self::I8x64; 8], _to: &mut CacheLine) {}

    /// Integer dot products of `N` of a sub-block's vectors of quants, from vector `part · N` on,
    /// with the inputs `x`; `bias` is −128 · Σ of these inputs.
    ///
    /// # Safety
    /// The CPU has the ISA, and the caller is compiled for it.
    #[inline(always)]
    unsafe fn dots<F: QuantFormat, const N: usize>(
        quants: &[Self::I8x64; 8],
        part: usize,
        bias: i32,
        x: &[i8; Q8_BLOCK],
    ) -> Self::I32x16 {
        // SAFETY: the ISA by this function's contract.
        unsafe { dots::<Self, F, N>(quants, part, bias, x) }
    }

    /// Adds the terms of a group's sub-blocks to the accumulators of all its rows.
    ///
    /// # Safety
    /// The CPU has the ISA; the group has one to `TILES` tiles.
    // Each ISA implements it as a function of its own, compiled with its features. Inlined like the
    // other methods, every format would have a copy.
    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut TileGroup<'_, '_>);
}

/// Unpacked sub-blocks of adjacent tiles, and the input rows to multiply them with.
pub(super) struct TileGroup<'a, 'y> {
    pub operands: &'a TileOperands<'a>,
    pub tiles: Range<usize>,
    /// The unpacked sub-blocks: for each, the lines of `size` tiles.
    pub lines: &'a [CacheLine],
    /// Tiles of the group. `tiles` is shorter if the last one is repeated.
    pub size: usize,
    /// [`QuantKind::shift`](super::formats::QuantKind::shift) of the quants.
    pub shift: u32,
    /// Products of pairs that can be added in 16 bits.
    pub depth: usize,
    /// Indices of the sub-blocks within a row.
    pub sub_blocks: Range<usize>,
    pub x: &'a Q8Rows<'a>,
    pub row_ids: Option<&'a [u32]>,
    /// Rows of `y`.
    pub rows: Range<usize>,
    /// Accumulators: a line per row and tile.
    pub sums: &'a mut [CacheLine],
    /// The output, set with the last sub-blocks, after which the sums are complete.
    pub y: Option<&'a mut MatrixViewMut<'y>>,
    /// The memory that is unpacked next.
    pub prefetch: PrefetchQueue,
}

/// Lines per unpacked sub-block: eight of quants and one or two of scales. With `offsets`, one line
/// of mins or [`negatives`](QuantGemm::store_negatives) follows for each line of scales.
pub(super) const fn lines_per_sub_block(offsets: bool, halves: bool) -> usize {
    8 + (1 + halves as usize) * (1 + offsets as usize)
}

/// [`multiply_group`](QuantGemm::multiply_group) for `T` tiles, one block of rows at a time.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
unsafe fn multiply_tiles<
    L: QuantGemm,
    const T: usize,
    const KIND: u8,
    const SPLIT_SCALE: bool,
    const DEPTH: usize,
>(
    group: &mut TileGroup<'_, '_>,
) {
    let lines = group.lines;
    let offsets = KIND == AFFINE || L::NARROW && KIND == SYMMETRIC;
    let per_sub_block = lines_per_sub_block(offsets, SPLIT_SCALE);
    assert!(lines.len() == group.sub_blocks.len() * T * per_sub_block, "unpacked lines");
    // Spread evenly over the blocks of rows: a core keeps a limited number of requests in flight.
    let each = group.prefetch.lines.div_ceil(group.rows.len().div_ceil(MR));
    let mut next = group.blocks(group.rows.start);
    for (i, first) in group.rows.clone().step_by(MR).enumerate() {
        let now = next;
        next = group.blocks(first + MR);
        let sums = &mut group.sums[i * MR * T..][..MR * T];
        // SAFETY: the lines are as many as just asserted, `sums` was cut to a line per row and
        // tile, and `blocks` checks the input rows.
        unsafe {
            let tile_block = MicrokernelBlock {
                lines: lines.as_ptr(),
                lines_per_sub_block: per_sub_block,
                sub_blocks: group.sub_blocks.len(),
                shift: group.shift,
                x: &now,
                next: &next,
                sums: sums.as_mut_ptr(),
            };
            match L::NARROW {
                #[cfg(target_arch = "x86_64")]
                true => narrow_avx2::multiply_block::<KIND, SPLIT_SCALE, DEPTH>(&tile_block),
                _ => multiply_block::<L, T, KIND, SPLIT_SCALE>(&tile_block),
            }
            group.prefetch.prefetch::<L>(each);
        }
        // Store now rather than after the last block: rows of `y` are far apart, so the stores miss
        // the caches, and the next block hides that.
        if let Some(y) = &mut group.y {
            for (row, sums) in (first..group.rows.end).zip(sums.chunks_exact(T)) {
                for (tile, sums) in group.tiles.clone().zip(sums) {
                    group.operands.store_outputs(&sums.0, tile, y.row_mut(row));
                }
            }
        }
    }
}

impl TileGroup<'_, '_> {
    /// First input block of each row of a microkernel block. Rows beyond the last repeat it, and
    /// their results are discarded.
    #[inline(always)]
    fn blocks(&self, first: usize) -> [*const Q8Block; MR] {
        let mut blocks = [std::ptr::null(); MR];
        for (i, block) in blocks.iter_mut().enumerate() {
            let row = (first + i).min(self.rows.end - 1);
            *block = self.x.row(input_row(self.row_ids, row))[self.sub_blocks.clone()].as_ptr();
        }
        blocks
    }
}

/// One microkernel block.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. For each of `sub_blocks` there
/// are the lines of `T` tiles and a block of each row of `x`; `sums` is an accumulator per row and
/// tile. `next` is only prefetched.
#[inline(always)]
unsafe fn multiply_block<L: Simd, const T: usize, const KIND: u8, const SPLIT_SCALE: bool>(
    tile_block: &MicrokernelBlock<'_>,
) {
    let &MicrokernelBlock { lines, lines_per_sub_block: per_sub_block, sub_blocks, shift, x, next, sums } =
        tile_block;
    let halves = 1 + usize::from(SPLIT_SCALE);
    // SAFETY: all indices stay below the sizes in this function's contract, which also promises the
    // ISA.
    unsafe {
        // `MR × T` accumulators in f32 and as many in int32: 24 of 32 registers with three tiles.
        let mut totals = [[L::splat_f32(0.0); T]; MR];
        for r in 0..MR {
            for t in 0..T {
                totals[r][t] = L::load_f32(sums.add(r * T + t).cast());
            }
        }
        for sub_block in 0..sub_blocks {
            let line = |t: usize, i: usize| lines.add((sub_block * T + t) * per_sub_block + i);
            // A `Q8Block` is one cache line. The next rows come from L2 or L3.
            for r in 0..MR {
                L::prefetch(next[r].wrapping_add(sub_block).cast());
            }
            for half in 0..halves {
                let mut ints = [[L::zero(); T]; MR];
                if KIND != AFFINE {
                    for r in 0..MR {
                        let block = &*x[r].add(sub_block);
                        let bias = if SPLIT_SCALE { block.half_biases[half] } else { block.bias };
                        ints[r] =
                            [if KIND == SYMMETRIC { L::init_acc(bias) } else { L::splat_i32(bias >> shift) };
                                T];
                    }
                }
                for j in half * 4..half * 4 + 8 / halves {
                    let mut quants = [L::load(line(0, j).cast()); T];
                    for t in 1..T {
                        quants[t] = L::load(line(t, j).cast());
                    }
                    // Rows and tiles inside: consecutive dot products have different accumulators,
                    // so none waits for its predecessor.
                    for r in 0..MR {
                        let x = (*x[r].add(sub_block)).quants.as_ptr().add(4 * j);
                        for t in 0..T {
                            ints[r][t] = if KIND == SYMMETRIC {
                                L::dot_biased(ints[r][t], quants[t], x)
                            } else {
                                L::dot(ints[r][t], quants[t], x)
                            };
                        }
                    }
                }
                for r in 0..MR {
                    let block = &*x[r].add(sub_block);
                    let scale = L::splat_f32(block.scale);
                    let total = L::splat_f32(if SPLIT_SCALE { block.halves[half] } else { block.total });
                    for t in 0..T {
                        let scales = L::load_f32(line(t, 8 + half).cast());
                        let terms = L::to_f32(ints[r][t]);
                        totals[r][t] = L::fma(terms, L::mul(scales, scale), totals[r][t]);
                        if KIND == AFFINE {
                            let mins = L::load_f32(line(t, 8 + halves + half).cast());
                            totals[r][t] = L::fnma(mins, total, totals[r][t]);
                        }
                    }
                }
            }
        }
        for r in 0..MR {
            for t in 0..T {
                L::store_f32(sums.add(r * T + t).cast(), totals[r][t]);
            }
        }
    }
}

impl QuantGemm for portable::PortableSimd {
    // One vector of sixteen lanes already takes four of the baseline's registers.
    const TILES: usize = 1;

    fn min_rows<F: QuantFormat>() -> usize {
        4
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut TileGroup<'_, '_>) {
        // SAFETY: `PortableSimd` is plain Rust and runs on any CPU.
        unsafe { multiply_tiles::<Self, 1, KIND, SPLIT_SCALE, 1>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl QuantGemm for avx2::Avx2<false> {
    // A tile is two registers, so four rows × one tile are eight accumulators of sixteen registers.
    const TILES: usize = 1;
    const NARROW: bool = true;

    fn min_rows<F: QuantFormat>() -> usize {
        // Full bytes cannot be summed in 16 bits, so their GEMM gains less over the small-batch
        // kernel.
        if narrow::full_bytes::<F>() { 16 } else { 8 }
    }

    #[inline(always)]
    unsafe fn bias16(quants: Self::I8x64) -> Self::I8x64 {
        // SAFETY: the ISA by this function's contract.
        unsafe { narrow_avx2::bias16(quants) }
    }

    #[inline(always)]
    unsafe fn store_negatives(quants: &[Self::I8x64; 8], to: &mut CacheLine) {
        // SAFETY: the ISA by this function's contract.
        unsafe { narrow_avx2::store_negatives(quants, to) }
    }

    #[inline(always)]
    unsafe fn dots<F: QuantFormat, const N: usize>(
        quants: &[Self::I8x64; 8],
        part: usize,
        bias: i32,
        x: &[i8; Q8_BLOCK],
    ) -> Self::I32x16 {
        // SAFETY: the ISA by this function's contract.
        unsafe {
            if const { narrow::full_bytes::<F>() } {
                dots::<Self, F, N>(quants, part, bias, x)
            } else {
                narrow_avx2::dots::<F, N>(quants, part, bias, x)
            }
        }
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut TileGroup<'_, '_>) {
        crate::isa::isa_fn! { Avx2;
            fn inner<const KIND: u8, const SPLIT_SCALE: bool, const DEPTH: usize>(group: &mut TileGroup<'_, '_>) {
                // SAFETY: this function is compiled for the ISA, which the CPU has by the contract
                // of `multiply_group`.
                unsafe { multiply_tiles::<avx2::Avx2<false>, 1, KIND, SPLIT_SCALE, DEPTH>(group) }
            }
        }
        // SAFETY: the CPU has the features that `inner` is compiled for by the contract of
        // `multiply_group`.
        unsafe {
            match (KIND == SYMMETRIC, SPLIT_SCALE, group.depth) {
                (true, ..) => inner::<KIND, SPLIT_SCALE, 1>(group),
                // With a scale per half, a sum has four vectors, so a depth of 8 cannot be used.
                (_, true, 4..) => inner::<KIND, SPLIT_SCALE, 4>(group),
                (_, true, _) => inner::<KIND, SPLIT_SCALE, 2>(group),
                (_, false, 8..) => inner::<KIND, SPLIT_SCALE, 8>(group),
                (_, false, _) => inner::<KIND, SPLIT_SCALE, 4>(group),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl QuantGemm for avx2::Avx2<true> {
    const TILES: usize = 1;

    fn min_rows<F: QuantFormat>() -> usize {
        16
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut TileGroup<'_, '_>) {
        crate::isa::isa_fn! { Avx2Vnni;
            fn inner<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut TileGroup<'_, '_>) {
                // SAFETY: this function is compiled for the ISA, which the CPU has by the contract
                // of `multiply_group`.
                unsafe { multiply_tiles::<avx2::Avx2<true>, 1, KIND, SPLIT_SCALE, 1>(group) }
            }
        }
        // SAFETY: the CPU has the features that `inner` is compiled for by the contract of
        // `multiply_group`.
        unsafe { inner::<KIND, SPLIT_SCALE>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl QuantGemm for avx512::Avx512 {
    const TILES: usize = 3;

    fn min_rows<F: QuantFormat>() -> usize {
        let amd = matches!(CpuVendor::detect(), CpuVendor::AmdZen5 | CpuVendor::Amd);
        match F::KIND {
            // Q3_K and Q6_K have separate upper bits and two scales per sub-block: the small-batch
            // kernel, which unpacks again for each eight rows, is slower than GEMM from eight rows
            // on.
            // measured: docs/notes/gemv-and-gemm.md "Rows per kernel"
            QuantKind::ConstZero(_) if F::SPLIT_SCALE && amd => 8,
            // The small-batch kernel is fast on AMD, where it prefetches in address order: 16 rows
            // take 72 to 88 % of GEMM's time.
            // measured: docs/notes/memory-and-prefetch.md "Layout and prefetch"
            _ if amd => 24,
            _ => 16,
        }
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut TileGroup<'_, '_>) {
        crate::isa::isa_fn! { Avx512;
            fn inner<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut TileGroup<'_, '_>) {
                // SAFETY: this function is compiled for the ISA, which the CPU has by the contract
                // of `multiply_group`.
                unsafe {
                    match group.size {
                        3 => multiply_tiles::<avx512::Avx512, 3, KIND, SPLIT_SCALE, 1>(group),
                        _ => multiply_tiles::<avx512::Avx512, 2, KIND, SPLIT_SCALE, 1>(group),
                    }
                }
            }
        }
        // SAFETY: the CPU has the features that `inner` is compiled for by the contract of
        // `multiply_group`.
        unsafe { inner::<KIND, SPLIT_SCALE>(group) }
    }
}
