//! Blocks of rows × unpacked tiles in registers, compiled once for all formats whose runs are alike.

use super::operands::Operands;
use super::prefetch_queue::PrefetchQueue;
use crate::activation::Q8Block;
#[cfg(target_arch = "x86_64")]
use crate::cpu_vendor::Vendor;
use crate::matmul::Line;
use crate::simd::{Simd, portable};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use crate::{Q8Rows, RowsMut};
use std::ops::Range;

/// Rows of a block in registers.
pub(super) const MR: usize = 4;

/// The forms of [`QuantKind`](super::formats::QuantKind), as numbers that functions are compiled for.
pub(super) const AFFINE: u8 = 0;
pub(super) const SYMMETRIC: u8 = 1;
pub(super) const CONST_ZERO: u8 = 2;

/// Most tiles of a group.
pub(super) const MAX_TILES: usize = 3;

/// An instruction set's way to multiply unpacked tiles.
///
/// # Safety
/// As for [`Simd`].
pub(super) trait QuantGemm: Simd {
    /// Tiles of a group: at most [`MAX_TILES`].
    const TILES: usize;

    /// Input rows from which on unpacking pays.
    fn min_rows() -> usize;

    /// Adds the terms of a group's runs to the sums of all its rows. Compiled once for all formats that are alike.
    ///
    /// # Safety
    /// As for [`Simd`]; the group has one to `TILES` tiles.
    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>);
}

/// Some runs of a group of tiles, and the rows to multiply them with.
pub(super) struct Group<'a, 'y> {
    pub operands: &'a Operands<'a>,
    pub tiles: Range<usize>,
    /// The unpacked runs: of each, the lines of `size` tiles.
    pub lines: &'a [Line],
    pub size: usize,
    /// That of the format's [`QuantKind`](super::formats::QuantKind).
    pub shift: u32,
    /// Which of a row's runs they are.
    pub runs: Range<usize>,
    pub x: &'a Q8Rows<'a>,
    pub index: Option<&'a [u32]>,
    /// The rows.
    pub rows: Range<usize>,
    /// Sums so far: a line for each row and tile.
    pub sums: &'a mut [Line],
    /// Where sums go that are complete after these runs.
    pub y: Option<&'a mut RowsMut<'y>>,
    pub ahead: PrefetchQueue,
}

/// Lines of an unpacked run: eight of codes, one or two of scales, and as many of minimums where there are any.
pub(super) const fn lines_of_run(mins: bool, halves: bool) -> usize {
    8 + (1 + halves as usize) * (1 + mins as usize)
}

/// Adds the terms of a group of `T` tiles, a block of rows at a time.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn multiply_tiles<L: Simd, const T: usize, const KIND: u8, const SPLIT_SCALE: bool>(
    group: &mut Group<'_, '_>,
) {
    let lines = group.lines;
    assert!(
        lines.len() == group.runs.len() * T * lines_of_run(KIND == AFFINE, SPLIT_SCALE),
        "unpacked lines"
    );
    let each = group.ahead.lines.div_ceil(group.rows.len().div_ceil(MR));
    let mut next = group.blocks(group.rows.start);
    for (i, first) in group.rows.clone().step_by(MR).enumerate() {
        let now = next;
        next = group.blocks(first + MR);
        let sums = &mut group.sums[i * MR * T..][..MR * T];
        // SAFETY: as many lines, blocks and sums, as just asserted and cut.
        unsafe {
            let runs = (group.runs.len(), group.shift);
            multiply_block::<L, T, KIND, SPLIT_SCALE>(lines.as_ptr(), runs, &now, &next, sums.as_mut_ptr());
            group.ahead.prefetch::<L>(each);
        }
        // at once: rows of outputs lie far apart, and stores that wait for memory are hidden behind the next products
        if let Some(y) = &mut group.y {
            for (row, sums) in (first..group.rows.end).zip(sums.chunks_exact(T)) {
                for (tile, sums) in group.tiles.clone().zip(sums) {
                    group.operands.put(&sums.0, tile, y.row_mut(row));
                }
            }
        }
    }
}

impl Group<'_, '_> {
    /// Where the blocks of a block of rows begin. Rows beyond the last repeat it, for nobody.
    #[inline(always)]
    fn blocks(&self, first: usize) -> [*const Q8Block; MR] {
        let mut blocks = [std::ptr::null(); MR];
        for (i, block) in blocks.iter_mut().enumerate() {
            let row = (first + i).min(self.rows.end - 1);
            let row = self.index.map_or(row, |index| index[row] as usize);
            *block = self.x.row(row)[self.runs.clone()].as_ptr();
        }
        blocks
    }
}

/// A block in registers: dot products of the same inputs of all rows and tiles follow one another, so that none waits for the one before.
///
/// # Safety
/// As for [`Simd`]; there are as many lines of `T` tiles, and blocks of each row, as `runs`, and a sum for each row and tile.
#[inline(always)]
unsafe fn multiply_block<L: Simd, const T: usize, const KIND: u8, const SPLIT_SCALE: bool>(
    lines: *const Line,
    (runs, shift): (usize, u32),
    x: &[*const Q8Block; MR],
    next: &[*const Q8Block; MR],
    sums: *mut Line,
) {
    let per_run = lines_of_run(KIND == AFFINE, SPLIT_SCALE);
    let halves = 1 + usize::from(SPLIT_SCALE);
    // SAFETY: the caller's promise.
    unsafe {
        let mut totals = [[L::splat_f32(0.0); T]; MR];
        for r in 0..MR {
            for t in 0..T {
                totals[r][t] = L::load_f32(sums.add(r * T + t).cast());
            }
        }
        for run in 0..runs {
            let line = |t: usize, i: usize| lines.add((run * T + t) * per_run + i);
            for r in 0..MR {
                L::prefetch(next[r].wrapping_add(run).cast());
            }
            for half in 0..halves {
                let mut ints = [[L::zero(); T]; MR];
                if KIND != AFFINE {
                    for r in 0..MR {
                        let block = &*x[r].add(run);
                        let bias = if SPLIT_SCALE { block.half_biases[half] } else { block.bias };
                        ints[r] =
                            [if KIND == SYMMETRIC { L::init_acc(bias) } else { L::splat_i32(bias >> shift) };
                                T];
                    }
                }
                for j in half * 4..half * 4 + 8 / halves {
                    let mut codes = [L::load(line(0, j).cast()); T];
                    for t in 1..T {
                        codes[t] = L::load(line(t, j).cast());
                    }
                    for r in 0..MR {
                        let x = (*x[r].add(run)).codes.as_ptr().add(4 * j);
                        for t in 0..T {
                            ints[r][t] = if KIND == SYMMETRIC {
                                L::dot_biased(ints[r][t], codes[t], x)
                            } else {
                                L::dot(ints[r][t], codes[t], x)
                            };
                        }
                    }
                }
                for r in 0..MR {
                    let block = &*x[r].add(run);
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

impl QuantGemm for portable::Portable {
    const TILES: usize = 1;

    fn min_rows() -> usize {
        4
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>) {
        // SAFETY: plain Rust.
        unsafe { multiply_tiles::<Self, 1, KIND, SPLIT_SCALE>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl QuantGemm for avx2::Avx2<false> {
    const TILES: usize = 1;

    fn min_rows() -> usize {
        16
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>) {
        crate::isa::isa_fn! { Avx2;
            fn inner<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>) {
                // SAFETY: compiled for AVX2.
                unsafe { multiply_tiles::<avx2::Avx2<false>, 1, KIND, SPLIT_SCALE>(group) }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { inner::<KIND, SPLIT_SCALE>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl QuantGemm for avx2::Avx2<true> {
    const TILES: usize = 1;

    fn min_rows() -> usize {
        16
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>) {
        crate::isa::isa_fn! { Avx2Vnni;
            fn inner<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>) {
                // SAFETY: compiled for AVX2 and AVX-VNNI.
                unsafe { multiply_tiles::<avx2::Avx2<true>, 1, KIND, SPLIT_SCALE>(group) }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { inner::<KIND, SPLIT_SCALE>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl QuantGemm for avx512::Avx512 {
    const TILES: usize = 3;

    fn min_rows() -> usize {
        // two to eight rows in registers are quick there since lines are asked for in the order of addresses: 16 rows take 72 to 88 % of the time
        match Vendor::detect() {
            Vendor::Amd => 24,
            Vendor::Other => 16,
        }
    }

    unsafe fn multiply_group<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>) {
        crate::isa::isa_fn! { Avx512;
            fn inner<const KIND: u8, const SPLIT_SCALE: bool>(group: &mut Group<'_, '_>) {
                // SAFETY: compiled for AVX-512.
                unsafe {
                    match group.size {
                        3 => multiply_tiles::<avx512::Avx512, 3, KIND, SPLIT_SCALE>(group),
                        _ => multiply_tiles::<avx512::Avx512, 2, KIND, SPLIT_SCALE>(group),
                    }
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { inner::<KIND, SPLIT_SCALE>(group) }
    }
}
