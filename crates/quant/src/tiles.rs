//! Tiles: sixteen interleaved weight rows, so that one vector register holds the same four inputs
//! of all sixteen.
//!
//! Packing is lossless. A tile has up to four planes. Each holds one kind of field of all blocks,
//! in the order of blocks. For quantized formats:
//!
//! * **quants**: vectors of 64 bytes; byte `4·r + i` of vector `v` is byte `4·v + i` of row r's
//!   quants;
//! * **high**: upper bits of quants in the same byte order (in Q5_0 and Q5_1, vectors of 64 *bits*:
//!   bit `4·r + i` of vector `v` belongs to quant `4·v + i` of row r);
//! * **scales**: one byte per row and sub-block, sixteen rows adjacent. 6-bit scales are widened to
//!   bytes, the only growth (2.8 % for Q4_K, 2.3 % for Q5_K, 3.6 % for Q3_K, 1.5 % for IQ4_XS);
//! * **super-block scales**: the f16 (or 8-bit) `d` and `dmin` of each row's block, sixteen rows
//!   adjacent.
//!
//! Formats without blocks are packed 32 elements at a time; the last ones of a row are padded with
//! zero bytes:
//!
//! * **quants** of BF16: vectors of 64 bytes, two inputs of sixteen rows; a 32-bit lane has both of
//!   one row, the first in its lower half;
//! * **quants** of F16: vectors of 32 bytes, one input of sixteen rows;
//! * **quants** of F8_E4M3: vectors of 32 bytes, two inputs of sixteen rows; a 16-bit lane has both
//!   of one row. **Super-block scales**: a NaN flag per row, an f32 that is NaN if the row contains
//!   NaN, else 0. Kernels start their accumulators with it instead of testing for the two NaN
//!   codes. Block scales are in a separate tensor.
//!
//! Planes start at multiples of 64 bytes, and tiles are a multiple of 64 bytes long. Missing rows
//! of the last tile are zero bytes.

use crate::{f8_e4m3, k_scales};
use latent_types::TensorType;

/// Rows per tile.
pub const ROWS: usize = 16;

/// Alignment of planes and tiles, in bytes: a cache line, and the largest vector.
pub const ALIGN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TilePlane {
    /// Quants, or their lower bits.
    Quants,
    /// Upper bits of quants.
    High,
    /// Scales of sub-blocks.
    Scales,
    /// Scales (and mins) of blocks: `d` and `dmin`.
    SuperScales,
}

/// A field of a block, and its plane.
#[derive(Clone, Copy, Debug)]
enum BlockField {
    /// `count` units of `size` bytes from byte `from` on; each unit is interleaved over sixteen
    /// rows.
    Units { plane: TilePlane, from: usize, size: usize, count: usize },
    /// 32 bits, one per quant, into the high plane: eight vectors of 64 bits.
    Bits { from: usize },
    /// Scales and mins of Q4_K and Q5_K: 16 bytes once unpacked.
    KScales { from: usize },
    /// Scales of Q3_K: 16 bytes once unpacked.
    Q3Scales { from: usize },
    /// Scales of IQ4_XS: 8 bytes once unpacked.
    Iq4XsScales,
}

impl BlockField {
    /// Bytes of the field in a plane, per row and block.
    fn bytes(self, of: TilePlane) -> usize {
        match self {
            BlockField::Units { plane, size, count, .. } if plane == of => size * count,
            BlockField::Bits { .. } if of == TilePlane::High => 4,
            BlockField::KScales { .. } | BlockField::Q3Scales { .. } if of == TilePlane::Scales => 16,
            BlockField::Iq4XsScales if of == TilePlane::Scales => 8,
            _ => 0,
        }
    }
}

const fn units(plane: TilePlane, from: usize, size: usize, count: usize) -> BlockField {
    BlockField::Units { plane, from, size, count }
}

/// The fields of a block; empty if the format has no tiles.
fn fields(ty: TensorType) -> &'static [BlockField] {
    use TilePlane::{High, Quants, Scales, SuperScales};
    const Q4_0: &[BlockField] = &[units(SuperScales, 0, 2, 1), units(Quants, 2, 4, 4)];
    const Q4_1: &[BlockField] = &[units(SuperScales, 0, 2, 2), units(Quants, 4, 4, 4)];
    // Upper bits are interleaved four per row, and `Units` moves whole bytes only.
    const Q5_0: &[BlockField] =
        &[units(SuperScales, 0, 2, 1), BlockField::Bits { from: 2 }, units(Quants, 6, 4, 4)];
    const Q5_1: &[BlockField] =
        &[units(SuperScales, 0, 2, 2), BlockField::Bits { from: 4 }, units(Quants, 8, 4, 4)];
    const Q8_0: &[BlockField] = &[units(SuperScales, 0, 2, 1), units(Quants, 2, 4, 8)];
    const Q2_K: &[BlockField] =
        &[units(Scales, 0, 1, 16), units(Quants, 16, 4, 16), units(SuperScales, 80, 2, 2)];
    const Q3_K: &[BlockField] = &[
        units(High, 0, 4, 8),
        units(Quants, 32, 4, 16),
        BlockField::Q3Scales { from: 96 },
        units(SuperScales, 108, 2, 1),
    ];
    const Q4_K: &[BlockField] =
        &[units(SuperScales, 0, 2, 2), BlockField::KScales { from: 4 }, units(Quants, 16, 4, 32)];
    const Q5_K: &[BlockField] = &[
        units(SuperScales, 0, 2, 2),
        BlockField::KScales { from: 4 },
        units(High, 16, 4, 8),
        units(Quants, 48, 4, 32),
    ];
    const Q6_K: &[BlockField] = &[
        units(Quants, 0, 4, 32),
        units(High, 128, 4, 16),
        units(Scales, 192, 1, 16),
        units(SuperScales, 208, 2, 1),
    ];
    const IQ4_XS: &[BlockField] =
        &[units(SuperScales, 0, 2, 1), BlockField::Iq4XsScales, units(Quants, 8, 4, 32)];
    const MXFP4: &[BlockField] = &[units(SuperScales, 0, 1, 1), units(Quants, 1, 4, 4)];
    const NVFP4: &[BlockField] = &[units(SuperScales, 0, 1, 4), units(Quants, 4, 4, 8)];
    const BF16: &[BlockField] = &[units(Quants, 0, 4, UNBLOCKED_LEN / 2)];
    const F16: &[BlockField] = &[units(Quants, 0, 2, UNBLOCKED_LEN)];
    const F8_E4M3: &[BlockField] = &[units(Quants, 0, 2, UNBLOCKED_LEN / 2)];
    match ty {
        // The same layout; only the meaning of quants differs.
        TensorType::Q4_0 | TensorType::IQ4_NL => Q4_0,
        TensorType::Q4_1 => Q4_1,
        TensorType::Q5_0 => Q5_0,
        TensorType::Q5_1 => Q5_1,
        TensorType::Q8_0 => Q8_0,
        TensorType::Q2_K => Q2_K,
        TensorType::Q3_K => Q3_K,
        TensorType::Q4_K => Q4_K,
        TensorType::Q5_K => Q5_K,
        TensorType::Q6_K => Q6_K,
        TensorType::IQ4_XS => IQ4_XS,
        TensorType::MXFP4 => MXFP4,
        TensorType::NVFP4 => NVFP4,
        TensorType::BF16 => BF16,
        TensorType::F16 => F16,
        TensorType::F8_E4M3 => F8_E4M3,
        _ => &[],
    }
}

/// Elements packed together in a format without blocks.
const UNBLOCKED_LEN: usize = 32;

/// Elements per packed block.
fn block_len(ty: TensorType) -> usize {
    if ty.block_len() == 1 { UNBLOCKED_LEN } else { ty.block_len() }
}

/// The layout of tiles for one format and row length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLayout {
    ty: TensorType,
    blocks: usize,
    block_bytes: usize,
    row_bytes: usize,
    starts: [usize; 4],
    bytes: usize,
}

impl TileLayout {
    /// The layout for rows of `cols` elements. `None` if the format has no tiles, `cols` is not a
    /// multiple of the block size, or the size overflows.
    pub fn new(ty: TensorType, cols: usize) -> Option<TileLayout> {
        let fields = fields(ty);
        if fields.is_empty() {
            return None;
        }
        let row_bytes = ty.row_bytes(cols)?;
        let blocks = cols.div_ceil(block_len(ty));
        let block_bytes = block_len(ty) / ty.block_len() * ty.block_bytes();
        let mut starts = [0; 4];
        let mut bytes = 0usize;
        for (i, plane) in [TilePlane::Quants, TilePlane::High, TilePlane::Scales, TilePlane::SuperScales]
            .into_iter()
            .enumerate()
        {
            starts[i] = bytes;
            let block: usize = fields.iter().map(|field| field.bytes(plane)).sum();
            let plane = blocks.checked_mul(ROWS)?.checked_mul(block)?.checked_next_multiple_of(ALIGN)?;
            bytes = plane.checked_add(bytes)?;
        }
        // NaN flags: the format has no super-block scales, so their plane starts at the end of the
        // quants. 64 bytes keep the alignment.
        if ty == TensorType::F8_E4M3 {
            bytes = bytes.checked_add(ROWS * size_of::<f32>())?;
        }
        Some(TileLayout { ty, blocks, block_bytes, row_bytes, starts, bytes })
    }

    pub fn tile_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of a matrix of `rows` rows.
    pub fn matrix_bytes(&self, rows: usize) -> usize {
        rows.div_ceil(ROWS) * self.bytes
    }

    /// Bytes of a matrix of `rows` rows; `None` on overflow.
    pub fn checked_matrix_bytes(&self, rows: usize) -> Option<usize> {
        rows.div_ceil(ROWS).checked_mul(self.bytes)
    }

    /// Offset of a plane in a tile.
    pub fn start(&self, plane: TilePlane) -> usize {
        self.starts[plane as usize]
    }

    /// Blocks per row.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Packs one to sixteen consecutive rows into a tile.
    ///
    /// # Panics
    /// When `rows` is not one to sixteen whole rows, or `tile` not [`tile_bytes`](Self::tile_bytes)
    /// long.
    pub fn pack(&self, rows: &[u8], tile: &mut [u8]) {
        let row_bytes = self.row_bytes;
        assert!(rows.len().is_multiple_of(row_bytes) && rows.len() / row_bytes <= ROWS, "rows of a tile");
        assert_eq!(tile.len(), self.bytes, "bytes of a tile");
        // `pack_all` writes all sixteen rows, so only partial tiles and padded blocks need zeros.
        if rows.len() == ROWS * row_bytes && row_bytes.is_multiple_of(self.block_bytes) {
            self.pack_all(rows, tile);
        } else {
            tile.fill(0);
            for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (b, block) in row.chunks(self.block_bytes).enumerate() {
                    // Only formats without blocks can have a shorter last one: at most 32 elements
                    // of two bytes.
                    let mut whole = [0; UNBLOCKED_LEN * 2];
                    let block = if block.len() < self.block_bytes {
                        whole[..block.len()].copy_from_slice(block);
                        &whole[..self.block_bytes]
                    } else {
                        block
                    };
                    for field in fields(self.ty) {
                        self.put(*field, r, b, block, tile);
                    }
                }
            }
        }
        if self.ty == TensorType::F8_E4M3 {
            self.write_nan_flags(rows, tile);
        }
    }

    /// Writes the NaN flags of an F8_E4M3 tile.
    fn write_nan_flags(&self, rows: &[u8], tile: &mut [u8]) {
        let flags = tile[self.start(TilePlane::SuperScales)..].chunks_exact_mut(size_of::<f32>());
        let nan = rows.chunks_exact(self.row_bytes).map(f8_e4m3::holds_nan).chain(std::iter::repeat(false));
        for (flag, nan) in flags.zip(nan) {
            flag.copy_from_slice(&(if nan { f32::NAN } else { 0.0 }).to_le_bytes());
        }
    }

    /// Packs sixteen rows of whole blocks. The result is the same as row by row, but all rows of a
    /// block are written while that part of the tile is in L1.
    fn pack_all(&self, rows: &[u8], tile: &mut [u8]) {
        let (row_bytes, len) = (self.row_bytes, self.block_bytes);
        let fields = fields(self.ty);
        for b in 0..self.blocks {
            let blocks: [&[u8]; ROWS] = std::array::from_fn(|r| &rows[r * row_bytes + b * len..][..len]);
            for field in fields {
                match *field {
                    BlockField::Units { plane, from, size: 4, count } => {
                        let start = self.at(plane, 0, b, 0, count, 4);
                        interleave(&blocks, from, &mut tile[start..start + 4 * count * ROWS]);
                    }
                    BlockField::Units { plane, from, size: 2, count } => {
                        let start = self.at(plane, 0, b, 0, count, 2);
                        interleave_small::<2>(&blocks, from, &mut tile[start..start + 2 * count * ROWS]);
                    }
                    BlockField::Units { plane, from, size: 1, count } => {
                        let start = self.at(plane, 0, b, 0, count, 1);
                        interleave_small::<1>(&blocks, from, &mut tile[start..start + count * ROWS]);
                    }
                    field => {
                        blocks.iter().enumerate().for_each(|(r, block)| self.put(field, r, b, block, tile))
                    }
                }
            }
        }
    }

    /// Unpacks row `r` of a tile, bit for bit.
    ///
    /// # Panics
    /// When `r` is not below sixteen, or a length does not match the layout.
    pub fn unpack_row(&self, tile: &[u8], r: usize, row: &mut [u8]) {
        assert!(r < ROWS && row.len() == self.row_bytes, "one row of a tile");
        assert_eq!(tile.len(), self.bytes, "bytes of a tile");
        // `take` sets fifth bits by a bitwise or.
        row.fill(0);
        for (b, block) in row.chunks_mut(self.block_bytes).enumerate() {
            let mut whole = [0; UNBLOCKED_LEN * 2];
            let part = block.len() < self.block_bytes;
            let out = if part { &mut whole[..self.block_bytes] } else { &mut *block };
            for field in fields(self.ty) {
                self.take(*field, r, b, out, tile);
            }
            if part {
                block.copy_from_slice(&whole[..block.len()]);
            }
        }
    }

    /// Offset of unit `u` of `count` units of `size` bytes, of row `r` and block `b`.
    #[inline(always)]
    fn at(&self, plane: TilePlane, r: usize, b: usize, u: usize, count: usize, size: usize) -> usize {
        self.start(plane) + ((b * count + u) * ROWS + r) * size
    }

    fn put(&self, field: BlockField, r: usize, b: usize, block: &[u8], tile: &mut [u8]) {
        match field {
            BlockField::Units { plane, from, size, count } => {
                for u in 0..count {
                    let at = self.at(plane, r, b, u, count, size);
                    tile[at..at + size].copy_from_slice(&block[from + u * size..][..size]);
                }
            }
            // A vector of 64 bits has four bits per row: two rows share a byte.
            BlockField::Bits { from } => {
                for i in 0..8 {
                    let bits = (block[from + i / 2] >> (i % 2 * 4)) & 15;
                    let byte = &mut tile[self.start(TilePlane::High) + (b * 8 + i) * 8 + r / 2];
                    let shift = r % 2 * 4;
                    // The fast path does not clear the tile first, so old bits must be removed
                    // here.
                    *byte = (*byte & !(15 << shift)) | (bits << shift);
                }
            }
            // Unpacked once here: kernels load a byte per row instead of shuffling 6-bit fields for
            // every product.
            BlockField::KScales { from } => {
                let (scales, mins) = k_scales::unpack_scales_mins(&twelve(block, from));
                self.put_scales(r, b, &scales, 0, 16, tile);
                self.put_scales(r, b, &mins, 8, 16, tile);
            }
            BlockField::Q3Scales { from } => {
                let scales = k_scales::unpack_q3_scales(&twelve(block, from)).map(|s| s as u8);
                self.put_scales(r, b, &scales, 0, 16, tile);
            }
            BlockField::Iq4XsScales => {
                let upper = u16::from_le_bytes([block[2], block[3]]);
                // Without the zero point of 32: kernels load signed bytes.
                let scale = |g: usize| {
                    let low = (block[4 + g / 2] >> (g % 2 * 4)) & 15;
                    (low | ((((upper >> (2 * g)) & 3) as u8) << 4)).wrapping_sub(32)
                };
                self.put_scales(r, b, &std::array::from_fn::<u8, 8, _>(scale), 0, 8, tile);
            }
        }
    }

    fn put_scales(&self, r: usize, b: usize, scales: &[u8], first: usize, count: usize, tile: &mut [u8]) {
        for (i, scale) in scales.iter().enumerate() {
            tile[self.at(TilePlane::Scales, r, b, first + i, count, 1)] = *scale;
        }
    }

    fn take_scales<const N: usize>(
        &self,
        r: usize,
        b: usize,
        first: usize,
        count: usize,
        tile: &[u8],
    ) -> [u8; N] {
        std::array::from_fn(|i| tile[self.at(TilePlane::Scales, r, b, first + i, count, 1)])
    }

    fn take(&self, field: BlockField, r: usize, b: usize, block: &mut [u8], tile: &[u8]) {
        match field {
            // The common sizes are constants, so that the compiler moves whole words.
            BlockField::Units { plane, from, size: 4, count } => {
                let start = self.at(plane, r, b, 0, count, 4);
                gather::<4>(&tile[start..], &mut block[from..from + 4 * count]);
            }
            BlockField::Units { plane, from, size: 2, count } => {
                let start = self.at(plane, r, b, 0, count, 2);
                gather::<2>(&tile[start..], &mut block[from..from + 2 * count]);
            }
            BlockField::Units { plane, from, size, count } => {
                for u in 0..count {
                    let at = self.at(plane, r, b, u, count, size);
                    block[from + u * size..][..size].copy_from_slice(&tile[at..at + size]);
                }
            }
            BlockField::Bits { from } => {
                for i in 0..8 {
                    let byte = tile[self.start(TilePlane::High) + (b * 8 + i) * 8 + r / 2];
                    block[from + i / 2] |= ((byte >> (r % 2 * 4)) & 15) << (i % 2 * 4);
                }
            }
            BlockField::KScales { from } => {
                let scales = self.take_scales(r, b, 0, 16, tile);
                let mins = self.take_scales(r, b, 8, 16, tile);
                block[from..from + 12].copy_from_slice(&k_scales::pack_scales_mins(&scales, &mins));
            }
            BlockField::Q3Scales { from } => {
                let scales = self.take_scales::<16>(r, b, 0, 16, tile).map(|s| s as i8);
                block[from..from + 12].copy_from_slice(&k_scales::pack_q3_scales(&scales));
            }
            BlockField::Iq4XsScales => {
                let scales = self.take_scales::<8>(r, b, 0, 8, tile).map(|s| s.wrapping_add(32));
                let mut upper = 0u16;
                for (g, bits) in scales.iter().enumerate() {
                    upper |= u16::from(bits >> 4) << (2 * g);
                    block[4 + g / 2] |= (bits & 15) << (g % 2 * 4);
                }
                block[2..4].copy_from_slice(&upper.to_le_bytes());
            }
        }
    }
}

/// Interleaves 4-byte units of sixteen blocks: unit u of row r becomes unit `16·u + r`. Squares of
/// 4 × 4 units are transposed at a time, in registers.
// Q4_0 is packed at 6.7 GB/s, Q4_K at 5.2 GB/s per core (Xeon).
// measured: docs/notes/quant-formats.md "Formats and their accuracy"
fn interleave(blocks: &[&[u8]; ROWS], from: usize, out: &mut [u8]) {
    for (four, lines) in out.chunks_exact_mut(16 * ROWS).enumerate() {
        let at = from + 16 * four;
        for g in 0..ROWS / 4 {
            let rows: [[u32; 4]; 4] = std::array::from_fn(|i| {
                let bytes: &[u8] = &blocks[4 * g + i][at..at + 16];
                // Units are moved whole, so the byte order does not matter.
                std::array::from_fn(|u| u32::from_ne_bytes(std::array::from_fn(|k| bytes[4 * u + k])))
            });
            for u in 0..4 {
                let line = &mut lines[4 * ROWS * u + 16 * g..][..16];
                for (unit, row) in line.chunks_exact_mut(4).zip(&rows) {
                    unit.copy_from_slice(&row[u].to_ne_bytes());
                }
            }
        }
    }
}

/// Interleaves units of `N` bytes, one at a time.
fn interleave_small<const N: usize>(blocks: &[&[u8]; ROWS], from: usize, out: &mut [u8]) {
    for (u, line) in out.chunks_exact_mut(N * ROWS).enumerate() {
        for (unit, block) in line.chunks_exact_mut(N).zip(blocks) {
            unit.copy_from_slice(&block[from + N * u..][..N]);
        }
    }
}

/// Gathers the first of every sixteen units of `N` bytes.
fn gather<const N: usize>(lines: &[u8], out: &mut [u8]) {
    for (unit, line) in out.chunks_exact_mut(N).zip(lines.chunks(N * ROWS)) {
        unit.copy_from_slice(&line[..N]);
    }
}

fn twelve(block: &[u8], from: usize) -> [u8; 12] {
    std::array::from_fn(|i| block[from + i])
}

pub const FORMATS: [TensorType; 17] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::MXFP4,
    TensorType::NVFP4,
    TensorType::BF16,
    TensorType::F16,
    TensorType::F8_E4M3,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    #[test]
    fn unpacking_restores_every_bit_and_tiles_grow_little() {
        for ty in FORMATS {
            for (blocks, rows) in [(1, 16), (3, 16), (64, 16), (8, 5), (2, 1), (77, 3)] {
                let layout = TileLayout::new(ty, blocks * ty.block_len()).unwrap();
                let file = noise(rows * layout.row_bytes);
                let mut tile = vec![0xaa; layout.tile_bytes()];
                layout.pack(&file, &mut tile);
                let mut row = vec![0x55; layout.row_bytes];
                for r in 0..ROWS {
                    layout.unpack_row(&tile, r, &mut row);
                    match file.chunks_exact(layout.row_bytes).nth(r) {
                        Some(truth) => assert_eq!(row, truth, "{ty}, row {r}"),
                        // In these two formats, a stored scale of 0 means 32 in the file.
                        None => assert!(
                            row.iter().all(|byte| *byte == 0)
                                || ty == TensorType::Q3_K
                                || ty == TensorType::IQ4_XS
                        ),
                    }
                }
            }
            let layout = TileLayout::new(ty, 2048).unwrap();
            let growth = layout.tile_bytes() as f64 / (ROWS * layout.row_bytes) as f64 - 1.0;
            let max = if ty == TensorType::Q3_K { 0.04 } else { 0.03 };
            assert!(growth <= max, "{ty} grows by {growth}");
        }
    }

    #[test]
    fn rows_of_fp8_with_a_nan_are_flagged() {
        let layout = TileLayout::new(TensorType::F8_E4M3, 40).unwrap();
        let mut rows = vec![0x7e; 9 * 40];
        (rows[3 * 40 + 39], rows[8 * 40]) = (0xff, 0x7f);
        let mut tile = vec![0xaa; layout.tile_bytes()];
        layout.pack(&rows, &mut tile);
        let flags = tile[layout.start(TilePlane::SuperScales)..].chunks_exact(4);
        let flags: Vec<f32> = flags.map(|m| f32::from_le_bytes([m[0], m[1], m[2], m[3]])).collect();
        assert_eq!(flags.len(), ROWS);
        for (r, flag) in flags.iter().enumerate() {
            assert!(if r == 3 || r == 8 { flag.is_nan() } else { *flag == 0.0 }, "row {r}: {flag}");
        }
    }

    #[test]
    fn formats_without_tiles_and_partial_blocks_have_no_layout() {
        assert_eq!(TileLayout::new(TensorType::IQ1_S, 256), None);
        assert_eq!(TileLayout::new(TensorType::Q4_K, 255), None);
    }
}
