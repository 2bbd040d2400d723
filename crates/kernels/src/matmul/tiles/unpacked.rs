//! Products of many 8-bit rows with tiles: numbers are unpacked once into lines of a cache, then multiplied with all rows.
//!
//! A group of neighbouring tiles is unpacked for [`RUNS`] runs of 32 inputs at a time, which stay in the first-level cache: codes as
//! the dot product wants them, scales and minimums as f32. Blocks of rows × tiles are then summed in registers, as many as hide the
//! latency of a dot product; between stretches of inputs their sums wait in memory. Rows are taken in such numbers that their stretch
//! stays in the second-level cache. The terms and their order are those of [`body`](super::body), so that the bits are the same.

use super::formats::{Format, Planes};
use super::operands::Operands;
use crate::act::A8Block;
use crate::lanes::{Lanes, portable};
#[cfg(target_arch = "x86_64")]
use crate::lanes::{avx2, avx512};
use crate::matmul::Line;
use crate::{A8Rows, RowsMut};
use std::ops::Range;

/// Runs of 32 inputs that are unpacked at a time; a whole number of blocks of every format.
const RUNS: usize = 16;

/// Bytes of input rows that are multiplied with a group before the next group: about half of a core's second-level cache.
const INPUTS: usize = 1 << 20;

/// Rows of a block in registers.
const BLOCK: usize = 4;

/// Most tiles of a group.
const MOST_TILES: usize = 3;

/// An instruction set's way to multiply unpacked tiles.
///
/// # Safety
/// As for [`Lanes`].
pub(super) trait Unpacked: Lanes {
    /// Input rows from which on unpacking pays.
    const FROM: usize;
    /// Tiles of a group: at most [`MOST_TILES`].
    const TILES: usize;

    /// Adds the terms of a group's runs to the sums of all its rows. Compiled once for all formats that are alike.
    ///
    /// # Safety
    /// As for [`Lanes`]; the group has one to `TILES` tiles.
    unsafe fn multiply_group<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>);
}

/// Some runs of a group of tiles, and the rows to multiply them with.
pub(super) struct Group<'a, 'y> {
    operands: &'a Operands<'a>,
    tiles: Range<usize>,
    /// The unpacked runs: of each, the lines of `size` tiles.
    lines: &'a [Line],
    size: usize,
    /// Which of a row's runs they are.
    runs: Range<usize>,
    x: &'a A8Rows<'a>,
    index: Option<&'a [u32]>,
    /// The rows.
    rows: Range<usize>,
    /// Sums so far: a line for each row and tile.
    sums: &'a mut [Line],
    /// Where sums go that are complete after these runs.
    y: Option<&'a mut RowsMut<'y>>,
    ahead: Ahead,
}

/// Lines of memory that are unpacked next, to be asked for meanwhile.
struct Ahead {
    pieces: [(*const u8, usize); 4 * MOST_TILES],
    /// Lines of all pieces.
    lines: usize,
    piece: usize,
    at: usize,
}

impl Ahead {
    /// Some blocks of some tiles.
    fn new(operands: &Operands<'_>, tiles: Range<usize>, blocks: Range<usize>) -> Ahead {
        let mut ahead = Ahead { pieces: [(std::ptr::null(), 0); 4 * MOST_TILES], lines: 0, piece: 0, at: 0 };
        for (tile, pieces) in tiles.zip(ahead.pieces.chunks_exact_mut(4)) {
            pieces.copy_from_slice(&operands.pieces(tile, blocks.clone()));
        }
        ahead.lines = ahead.pieces.iter().map(|(_, bytes)| bytes.div_ceil(64)).sum();
        ahead
    }

    /// Asks for the next lines.
    ///
    /// # Safety
    /// As for [`Lanes`].
    #[inline(always)]
    unsafe fn ask<L: Lanes>(&mut self, lines: usize) {
        for _ in 0..lines {
            while self.piece < self.pieces.len() && self.at >= self.pieces[self.piece].1 {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
            let Some((start, _)) = self.pieces.get(self.piece) else { return };
            // SAFETY: the caller's promise.
            unsafe { L::prefetch_far(start.wrapping_add(self.at)) };
            self.at += 64;
        }
    }
}

/// Lines of an unpacked run: eight of codes, one or two of scales, and as many of minimums, which formats of signed numbers do without.
const fn lines_of_run(signed: bool, halves: bool) -> usize {
    8 + (1 + halves as usize) * (2 - signed as usize)
}

/// `y[i][o − outs.start]` for all rows i (of `x`, by way of `index`).
///
/// # Safety
/// As for [`Lanes`]; the operands are checked.
#[inline(always)]
pub(super) unsafe fn multiply<L: Unpacked, F: Format>(
    operands: &Operands<'_>,
    x: &A8Rows<'_>,
    index: Option<&[u32]>,
    y: &mut RowsMut<'_>,
    memory: &mut Vec<Line>,
) {
    let (tiles, blocks) = (operands.tiles(), operands.layout.blocks());
    let rows = y.rows();
    let most = INPUTS / (A8Rows::row_blocks(x.cols()) * size_of::<A8Block>());
    let parts = rows.div_ceil(most.max(4 * BLOCK));
    let part = rows.div_ceil(parts).next_multiple_of(BLOCK);
    let per_run = lines_of_run(F::SIGNED, F::HALVES);
    let unpacked = RUNS * L::TILES * per_run;
    let needed = unpacked + part * L::TILES;
    if memory.len() < needed {
        memory.resize(needed, Line::ZERO);
    }
    let (unpacked, sums) = memory.split_at_mut(unpacked);
    let step = RUNS / F::SUBS;
    let mut row = 0;
    while row < rows {
        let rows = row..(row + part).min(rows);
        let mut tile = tiles.start;
        while tile < tiles.end {
            let size = group_of::<L>(tiles.end - tile);
            let sums = &mut sums[..rows.len().next_multiple_of(BLOCK) * size];
            sums.fill(Line::ZERO);
            let mut block = 0;
            while block < blocks {
                let end = (block + step).min(blocks);
                let unpacked = &mut unpacked[..(end - block) * F::SUBS * size * per_run];
                for i in 0..size {
                    let planes = operands.planes((tile + i).min(tiles.end - 1));
                    // SAFETY: the blocks are the tile's, and as many lines were taken for them.
                    unsafe {
                        unpack::<L, F>(&planes, block..end, &mut unpacked[i * per_run..], size * per_run)
                    };
                }
                let (next, from) = if end < blocks { (tile, end) } else { (tile + size, 0) };
                let runs = block * F::SUBS..end * F::SUBS;
                let mut group = Group {
                    operands,
                    tiles: tile..(tile + size).min(tiles.end),
                    lines: unpacked,
                    size,
                    runs,
                    x,
                    index,
                    rows: rows.clone(),
                    sums,
                    y: (end == blocks).then_some(&mut *y),
                    ahead: Ahead::new(
                        operands,
                        next..(next + size).min(tiles.end),
                        from..(from + step).min(blocks),
                    ),
                };
                // SAFETY: the caller's promise.
                unsafe {
                    match (F::SIGNED, F::HALVES) {
                        (false, false) => L::multiply_group::<false, false>(&mut group),
                        (false, true) => L::multiply_group::<false, true>(&mut group),
                        (true, false) => L::multiply_group::<true, false>(&mut group),
                        (true, true) => L::multiply_group::<true, true>(&mut group),
                    }
                }
                block = end;
            }
            tile += size;
        }
        row = rows.end;
    }
}

/// Tiles of the next group where `left` are left. One that is left alone is unpacked twice rather than compiled for; four are two pairs.
fn group_of<L: Unpacked>(left: usize) -> usize {
    if left < L::TILES || left == L::TILES + 1 { L::TILES.min(2) } else { L::TILES }
}

/// Unpacks some blocks of a tile: the lines of its runs are `step` lines apart.
///
/// # Safety
/// As for [`Format`].
#[inline(always)]
unsafe fn unpack<L: Lanes, F: Format>(planes: &Planes, blocks: Range<usize>, to: &mut [Line], step: usize) {
    const { assert!(RUNS.is_multiple_of(F::SUBS) && (F::SIGNED != F::MINS)) }
    let halves = 1 + usize::from(F::HALVES);
    let mut runs = to.chunks_mut(step);
    for b in blocks {
        macro_rules! runs {
            ($($s:literal)*) => {
                $(if $s < F::SUBS && let Some(lines) = runs.next() {
                    // SAFETY: the caller's promise; lines are 64 bytes each.
                    unsafe {
                        let codes = F::codes::<L, $s>(planes, b);
                        for j in 0..8 {
                            let codes = if F::SIGNED { L::raised(codes[j]) } else { codes[j] };
                            L::store_bytes(lines[j].0.as_mut_ptr().cast(), codes);
                        }
                        let scales = F::scales::<L, $s>(planes, b);
                        let mins = F::mins::<L, $s>(planes, b, scales);
                        for half in 0..halves {
                            L::store_floats(lines[8 + half].0.as_mut_ptr(), scales[half]);
                            if F::MINS {
                                L::store_floats(lines[8 + halves + half].0.as_mut_ptr(), mins[half]);
                            }
                        }
                    }
                })*
            };
        }
        runs!(0 1 2 3 4 5 6 7);
    }
}

/// Adds the terms of a group of `T` tiles, a block of rows at a time.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn multiply_tiles<L: Lanes, const T: usize, const SIGNED: bool, const HALVES: bool>(
    group: &mut Group<'_, '_>,
) {
    let lines = group.lines;
    assert!(lines.len() == group.runs.len() * T * lines_of_run(SIGNED, HALVES), "unpacked lines");
    let each = group.ahead.lines.div_ceil(group.rows.len().div_ceil(BLOCK));
    let mut next = group.blocks(group.rows.start);
    for (i, first) in group.rows.clone().step_by(BLOCK).enumerate() {
        let now = next;
        next = group.blocks(first + BLOCK);
        let sums = &mut group.sums[i * BLOCK * T..][..BLOCK * T];
        // SAFETY: as many lines, blocks and sums, as just asserted and cut.
        unsafe {
            let runs = group.runs.len();
            multiply_block::<L, T, SIGNED, HALVES>(lines.as_ptr(), runs, &now, &next, sums.as_mut_ptr());
            group.ahead.ask::<L>(each);
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
    fn blocks(&self, first: usize) -> [*const A8Block; BLOCK] {
        let mut blocks = [std::ptr::null(); BLOCK];
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
/// As for [`Lanes`]; there are as many lines of `T` tiles, and blocks of each row, as `runs`, and a sum for each row and tile.
#[inline(always)]
unsafe fn multiply_block<L: Lanes, const T: usize, const SIGNED: bool, const HALVES: bool>(
    lines: *const Line,
    runs: usize,
    x: &[*const A8Block; BLOCK],
    next: &[*const A8Block; BLOCK],
    sums: *mut Line,
) {
    let per_run = lines_of_run(SIGNED, HALVES);
    let halves = 1 + usize::from(HALVES);
    // SAFETY: the caller's promise.
    unsafe {
        let mut totals = [[L::all(0.0); T]; BLOCK];
        for r in 0..BLOCK {
            for t in 0..T {
                totals[r][t] = L::load_floats(sums.add(r * T + t).cast());
            }
        }
        for run in 0..runs {
            let line = |t: usize, i: usize| lines.add((run * T + t) * per_run + i);
            for r in 0..BLOCK {
                L::prefetch(next[r].wrapping_add(run).cast());
            }
            for half in 0..halves {
                let mut ints = [[L::zero(); T]; BLOCK];
                if SIGNED {
                    for r in 0..BLOCK {
                        let block = &*x[r].add(run);
                        ints[r] = [L::start(if HALVES { block.half_biases[half] } else { block.bias }); T];
                    }
                }
                for j in half * 4..half * 4 + 8 / halves {
                    let mut codes = [L::load(line(0, j).cast()); T];
                    for t in 1..T {
                        codes[t] = L::load(line(t, j).cast());
                    }
                    for r in 0..BLOCK {
                        let x = (*x[r].add(run)).codes.as_ptr().add(4 * j);
                        for t in 0..T {
                            ints[r][t] = if SIGNED {
                                L::dot_raised(ints[r][t], codes[t], x)
                            } else {
                                L::dot(ints[r][t], codes[t], x)
                            };
                        }
                    }
                }
                for r in 0..BLOCK {
                    let block = &*x[r].add(run);
                    let scale = L::all(block.scale);
                    let total = L::all(if HALVES { block.halves[half] } else { block.total });
                    for t in 0..T {
                        let scales = L::load_floats(line(t, 8 + half).cast());
                        let terms = L::floats(ints[r][t]);
                        totals[r][t] = L::fma(terms, L::mul(scales, scale), totals[r][t]);
                        if !SIGNED {
                            let mins = L::load_floats(line(t, 8 + halves + half).cast());
                            totals[r][t] = L::fnma(mins, total, totals[r][t]);
                        }
                    }
                }
            }
        }
        for r in 0..BLOCK {
            for t in 0..T {
                L::store_floats(sums.add(r * T + t).cast(), totals[r][t]);
            }
        }
    }
}

impl Unpacked for portable::Portable {
    const FROM: usize = 4;
    const TILES: usize = 1;

    unsafe fn multiply_group<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>) {
        // SAFETY: plain Rust.
        unsafe { multiply_tiles::<Self, 1, SIGNED, HALVES>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Unpacked for avx2::Avx2<false> {
    const FROM: usize = 16;
    const TILES: usize = 1;

    unsafe fn multiply_group<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>) {
            // SAFETY: compiled for AVX2.
            unsafe { multiply_tiles::<avx2::Avx2<false>, 1, SIGNED, HALVES>(group) }
        }
        // SAFETY: the caller's promise.
        unsafe { inner::<SIGNED, HALVES>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Unpacked for avx2::Avx2<true> {
    const FROM: usize = 16;
    const TILES: usize = 1;

    unsafe fn multiply_group<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>) {
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn inner<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>) {
            // SAFETY: compiled for AVX2 and AVX-VNNI.
            unsafe { multiply_tiles::<avx2::Avx2<true>, 1, SIGNED, HALVES>(group) }
        }
        // SAFETY: the caller's promise.
        unsafe { inner::<SIGNED, HALVES>(group) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Unpacked for avx512::Avx512 {
    const FROM: usize = 16;
    const TILES: usize = 3;

    unsafe fn multiply_group<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,f16c")]
        fn inner<const SIGNED: bool, const HALVES: bool>(group: &mut Group<'_, '_>) {
            // SAFETY: compiled for AVX-512.
            unsafe {
                match group.size {
                    3 => multiply_tiles::<avx512::Avx512, 3, SIGNED, HALVES>(group),
                    _ => multiply_tiles::<avx512::Avx512, 2, SIGNED, HALVES>(group),
                }
            }
        }
        // SAFETY: the caller's promise.
        unsafe { inner::<SIGNED, HALVES>(group) }
    }
}
