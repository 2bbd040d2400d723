//! GEMM on AMX: blocking of rows, outputs and inputs.
//!
//! For each 1024 input rows, 256 outputs and 512 inputs, the weights are dequantized to a bf16
//! block (256 KB). Then each 32 input rows (32 KB) are multiplied with the whole block, 32 outputs
//! at a time. A k-step reads 4 KB for 32 768 multiply-adds, half of it from L1. Accumulators leave
//! the tile registers once per sixteen k-steps. The accumulators between two blocks of the same
//! outputs (1 MB) and the block itself stay in an L2 of 2 MB. The sizes are counted, not tuned
//! (`docs/notes/amx-and-bf16.md`, "Block sizes").
#![allow(unsafe_code, reason = "tiles are loaded from and stored to addresses that are checked on entry")]

use super::dequant_block;
use crate::bf16::dot::{AmxTiles, Bf16Dot, K_STEP, NR, TILE_BYTES, TILE_ROWS};
use crate::matmul::args::{MatmulArgs, input_row};
use crate::matmul::quantized::formats::QuantFormat;
use crate::matmul::quantized::operands::TileOperands;
use crate::matmul::scratch::{CacheLine, MatmulScratch, grow};
use crate::{Bf16Rows, MatrixViewMut, QuantizedInput};
use std::ops::Range;

/// Input rows that are multiplied with all weights before the next rows. Dequantizing a block takes
/// as long as multiplying 64 rows.
const BLOCK_ROWS: usize = 1024;

/// Weight tiles per dequantized block: sixteen outputs each.
const BLOCK_TILES: usize = 16;

/// Inputs per dequantized block: whole blocks of every format.
const BLOCK_INPUTS: usize = 512;

/// Address of at least `bytes` bytes of a buffer.
fn bytes_of(lines: &mut Vec<CacheLine>, bytes: usize) -> *mut u8 {
    grow(lines, bytes.div_ceil(size_of::<CacheLine>())).as_mut_ptr().cast()
}

/// A [`MatmulFn`](crate::MatmulFn) for bf16 inputs.
///
/// # Panics
/// When the shapes differ, the number of inputs is not a multiple of the k-step, or the CPU lacks
/// AMX.
pub(super) fn multiply<F: QuantFormat>(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::Bf16(x) = *input else { return };
    let cols = x.cols();
    let Some(operands) = TileOperands::new::<F>(weight, cols, outputs, y) else { return };
    assert!(cols.is_multiple_of(K_STEP), "{cols} inputs: not a multiple of the k-step ({K_STEP})");
    let buffers = &mut scratch.amx;
    let mut dot = AmxTiles::new();
    let inputs = AmxInputs::new(x, row_ids, y.rows(), &mut buffers.inputs);
    let (rows, tiles) = (y.rows(), operands.tiles());
    for from_row in (0..rows).step_by(BLOCK_ROWS) {
        let block_rows = from_row..rows.min(from_row + BLOCK_ROWS);
        for from_tile in tiles.clone().step_by(BLOCK_TILES) {
            let block_tiles = from_tile..tiles.end.min(from_tile + BLOCK_TILES);
            for from in (0..cols).step_by(BLOCK_INPUTS) {
                let block_inputs = from..cols.min(from + BLOCK_INPUTS);
                let weights = dequantize::<F>(
                    &operands,
                    block_tiles.clone(),
                    block_inputs.clone(),
                    &mut buffers.weights,
                );
                let block = WeightBlock {
                    weights,
                    tile_pairs: block_tiles.len().div_ceil(2),
                    steps: block_inputs.len() / K_STEP,
                    first_input: from,
                    last: block_inputs.end == cols,
                    first_output: block_tiles.start * TILE_ROWS,
                    outputs: &operands.outs,
                };
                // SAFETY: the block was just dequantized, and `inputs` has all rows of `y`.
                unsafe { multiply_block(&mut dot, &inputs, block_rows.clone(), &block, y, &mut buffers.sums) }
            }
        }
    }
}

/// Dequantizes some inputs of some weight tiles to bf16, in pairs of tiles: for each k-step the two
/// tiles of a pair.
fn dequantize<F: QuantFormat>(
    operands: &TileOperands<'_>,
    tiles: Range<usize>,
    inputs: Range<usize>,
    memory: &mut Vec<CacheLine>,
) -> *const u8 {
    let (steps, block) = (inputs.len() / K_STEP, F::TY.block_len());
    let weights = bytes_of(memory, tiles.len().div_ceil(2) * steps * 2 * TILE_BYTES);
    // If the number of tiles is odd, the last pair has stale weights, whose outputs are not stored.
    for (i, tile) in tiles.enumerate() {
        let planes = operands.planes(tile);
        // SAFETY: `AmxTiles::new` has asserted the tier, which implies AVX512-BF16. The planes are
        // those of one tile with as many blocks, and the memory has room for `steps` k-steps of
        // each pair.
        unsafe {
            let out = weights.add(i / 2 * steps * 2 * TILE_BYTES + i % 2 * TILE_BYTES);
            dequant_block::dequantize::<F>(&planes, inputs.start / block..inputs.end / block, out);
        }
    }
    weights
}

/// Input rows as AMX tiles of sixteen rows.
struct AmxInputs {
    /// Number of tiles that are read in place.
    direct: usize,
    start: *const u8,
    /// Copies of the other rows: rows selected by `row_ids`, or a last tile of fewer than sixteen
    /// rows, padded with zeros.
    gathered: *const u8,
    /// Bytes from one row to the next, both in place and in the copies.
    stride: usize,
}

impl AmxInputs {
    fn new(x: Bf16Rows<'_>, row_ids: Option<&[u32]>, rows: usize, memory: &mut Vec<CacheLine>) -> AmxInputs {
        let (bits, cols, stride) = (x.bits(), x.cols(), x.stride());
        // AMX loads rows at a constant stride, so rows selected by ids must be copied.
        let direct = if row_ids.is_none() { rows / TILE_ROWS } else { 0 };
        let row = |i: usize| &bits[input_row(row_ids, i) * stride..][..cols];
        // Tiles are loaded from raw addresses, so the rows read in place must exist.
        assert!(direct * TILE_ROWS <= x.rows(), "rows of inputs");
        let rest = rows - direct * TILE_ROWS;
        let row_bytes = 2 * stride;
        let Some(bytes) = rest.next_multiple_of(TILE_ROWS).checked_mul(row_bytes) else {
            panic!("{rest} rows of inputs")
        };
        let gathered = bytes_of(memory, bytes);
        for i in 0..rest.next_multiple_of(TILE_ROWS) {
            // SAFETY: `gathered` has that many rows of `row_bytes` ≥ 2 · cols bytes, and `row` is a
            // slice of `cols` elements.
            unsafe {
                let to = gathered.add(i * row_bytes);
                if i < rest {
                    to.copy_from_nonoverlapping(row(direct * TILE_ROWS + i).as_ptr().cast(), 2 * cols);
                } else {
                    to.write_bytes(0, 2 * cols);
                }
            }
        }
        AmxInputs { direct, start: bits.as_ptr().cast(), gathered, stride: row_bytes }
    }

    /// Address of input `from` in the first row of a tile.
    fn tile(&self, tile: usize, from: usize) -> *const u8 {
        let (rows, tile) =
            if tile < self.direct { (self.start, tile) } else { (self.gathered, tile - self.direct) };
        rows.wrapping_add(tile * TILE_ROWS * self.stride + 2 * from)
    }
}

/// A block of dequantized weights.
#[derive(Clone, Copy)]
struct WeightBlock<'a> {
    /// Pairs of tiles, each with its k-steps.
    weights: *const u8,
    tile_pairs: usize,
    /// k-steps of 32 inputs.
    steps: usize,
    first_input: usize,
    /// Whether sums are complete after this block.
    last: bool,
    /// The first output of the block, counted from the first tile.
    first_output: usize,
    /// The outputs that the call computes, counted likewise.
    outputs: &'a Range<usize>,
}

/// Multiplies some input rows with a block of weights, into `y` if its sums are complete, else into
/// `sums`.
///
/// # Safety
/// The block's address holds as many tile pairs and k-steps as it says, and `inputs` has the rows.
unsafe fn multiply_block(
    dot: &mut AmxTiles,
    inputs: &AmxInputs,
    rows: Range<usize>,
    block: &WeightBlock<'_>,
    y: &mut MatrixViewMut<'_>,
    sums: &mut Vec<CacheLine>,
) {
    const ACC_LEN: usize = 2 * TILE_ROWS * NR;
    let row_tiles = rows.start / TILE_ROWS..rows.end.div_ceil(TILE_ROWS);
    let acc_bytes = row_tiles.len().div_ceil(2) * block.tile_pairs * ACC_LEN * size_of::<f32>();
    let sums = bytes_of(sums, acc_bytes).cast::<f32>();
    let (start, stride) = y.raw_mut();
    for (i, tile) in row_tiles.clone().step_by(2).enumerate() {
        let two = tile + 1 < row_tiles.end;
        let height = rows.end.min((tile + 2) * TILE_ROWS) - tile * TILE_ROWS;
        for pair in 0..block.tile_pairs {
            let right = block.weights.wrapping_add(pair * block.steps * 2 * TILE_BYTES);
            let acc = sums.wrapping_add((i * block.tile_pairs + pair) * ACC_LEN);
            let scratch = (acc, NR * size_of::<f32>());
            let columns = block.first_output + pair * NR..block.first_output + (pair + 1) * NR;
            let wanted = block.outputs.start.max(columns.start)..block.outputs.end.min(columns.end);
            let whole = wanted == columns && height == if two { 2 * TILE_ROWS } else { TILE_ROWS };
            let out = start.wrapping_add(tile * TILE_ROWS * stride + wanted.start - block.outputs.start);
            // Complete sums of whole tiles are stored to `y` directly. AMX stores whole tiles only,
            // so that tiles with padding rows or unwanted outputs go through scratch memory.
            let to = if block.last && whole { (out, stride * size_of::<f32>()) } else { scratch };
            let from = (block.first_input > 0).then_some((acc.cast_const(), scratch.1));
            let high = inputs.tile(tile, block.first_input);
            // SAFETY: rows and weights exist by this function's contract; `acc` has room for 32 ×
            // 32 sums, and `y` has all of them where `to` is in `y`.
            unsafe {
                if two {
                    let low = inputs.tile(tile + 1, block.first_input);
                    dot.multiply::<2>(([high, low], inputs.stride), right, block.steps, from, to);
                } else {
                    dot.multiply::<1>(([high], inputs.stride), right, block.steps, from, to);
                }
            }
            if block.last && !whole {
                for row in 0..height {
                    // SAFETY: one row of the accumulators, which were just written.
                    let sums = unsafe { std::slice::from_raw_parts(acc.add(row * NR), NR) };
                    y.row_mut(tile * TILE_ROWS + row)
                        [wanted.start - block.outputs.start..wanted.end - block.outputs.start]
                        .copy_from_slice(&sums[wanted.start - columns.start..wanted.end - columns.start]);
                }
            }
        }
    }
}
