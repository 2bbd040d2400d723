//! Products by strips.
//!
//! For each 1024 rows, 256 outputs and 512 inputs: the weights are unpacked (256 KB), then each 32 rows of inputs (32 KB) are
//! multiplied with all of the strip, 32 outputs at a time. A step of the unit reads 4 KB for 32 768 multiply-adds, half of it from the first-level
//! cache; sums leave the unit once in sixteen steps. Sums between two strips of the same outputs (1 MB) and
//! the strip stay in a second-level cache of 2 MB.
#![allow(unsafe_code, reason = "tiles are loaded from and stored to addresses that are checked on entry")]

use super::dequant_block;
use super::dot::{AmxTiles, Bf16Dot, K_STEP, NR, TILE_BYTES, TILE_ROWS};
use crate::matmul::formats::Format;
use crate::matmul::operands::Operands;
use crate::matmul::{Line, grow};
use crate::{Bf16Rows, MatmulArgs, QuantizedInput, RowsMut, Scratch};
use std::ops::Range;

/// Input rows that go through all strips before the next ones.
const BLOCK_ROWS: usize = 1024;

/// Packed tiles of a strip: sixteen outputs each.
const STRIP_TILES: usize = 16;

/// Inputs of a strip: whole blocks of every format.
const STRIP_INPUTS: usize = 512;

/// Memory of a thread, grown once.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Weights in the order of tiles.
    strip: Vec<Line>,
    /// Inputs that lie elsewhere, or are fewer than a tile has rows.
    inputs: Vec<Line>,
    /// Sums of blocks of 32 rows and 32 outputs, until they are whole.
    sums: Vec<Line>,
}

/// Address of at least so many bytes of a buffer.
fn grown(lines: &mut Vec<Line>, bytes: usize) -> *mut u8 {
    grow(lines, bytes.div_ceil(size_of::<Line>())).as_mut_ptr().cast()
}

/// `y[i][o − outs.start]` for all rows i (of `x`, by way of `index`).
///
/// # Panics
/// When the shapes differ, inputs are no whole number of steps, or there are no tiles.
pub(crate) fn multiply<F: Format>(args: MatmulArgs<'_, '_>, scratch: &mut Scratch) {
    let MatmulArgs { weight: w, input: x, row_ids: index, outputs: outs, y } = args;
    let QuantizedInput::Bf16(x) = *x else { return };
    let cols = x.cols();
    let Some(operands) = Operands::new::<F>(w, cols, outs, y) else { return };
    assert!(cols.is_multiple_of(K_STEP), "{cols} inputs are no whole number of steps");
    let buffers = &mut scratch.tiles;
    let mut dot = AmxTiles::new();
    let inputs = Inputs::new(x, index, y.rows(), &mut buffers.inputs);
    let (rows, tiles) = (y.rows(), operands.tiles());
    for from_row in (0..rows).step_by(BLOCK_ROWS) {
        let block_rows = from_row..rows.min(from_row + BLOCK_ROWS);
        for from_tile in tiles.clone().step_by(STRIP_TILES) {
            let strip_tiles = from_tile..tiles.end.min(from_tile + STRIP_TILES);
            let pairs = strip_tiles.len().div_ceil(2);
            for from in (0..cols).step_by(STRIP_INPUTS) {
                let to = cols.min(from + STRIP_INPUTS);
                let steps = (to - from) / K_STEP;
                let strip = unpack::<F>(&operands, strip_tiles.clone(), from..to, &mut buffers.strip);
                let part = Part { steps, from, last: to == cols };
                let outputs = (strip_tiles.start * TILE_ROWS, &operands.outs);
                // SAFETY: the strip is as just written.
                unsafe {
                    multiply_strip(
                        &mut dot,
                        &inputs,
                        block_rows.clone(),
                        (strip, pairs),
                        outputs,
                        part,
                        y,
                        &mut buffers.sums,
                    );
                }
            }
        }
    }
}

/// Some inputs of some packed tiles as a strip: pairs of tiles one after the other, of each step the two of a pair.
fn unpack<F: Format>(
    operands: &Operands<'_>,
    tiles: Range<usize>,
    inputs: Range<usize>,
    strip: &mut Vec<Line>,
) -> *const u8 {
    let (steps, block) = (inputs.len() / K_STEP, F::TY.block_len());
    let strip = grown(strip, tiles.len().div_ceil(2) * steps * 2 * TILE_BYTES);
    for (i, tile) in tiles.enumerate() {
        let planes = operands.planes(tile);
        // SAFETY: a machine with tiles has the instructions. The packed tile lies in the bytes and has as many blocks, and the strip room for as many steps.
        unsafe {
            let out = strip.add(i / 2 * steps * 2 * TILE_BYTES + i % 2 * TILE_BYTES);
            dequant_block::unpack::<F>(&planes, inputs.start / block..inputs.end / block, out);
        }
    }
    strip
}

/// Input rows by tiles of sixteen.
struct Inputs {
    /// Tiles that are read where they lie.
    direct: usize,
    start: *const u8,
    gathered: *const u8,
    /// Bytes between rows, of both.
    stride: usize,
}

impl Inputs {
    fn new(x: Bf16Rows<'_>, index: Option<&[u32]>, rows: usize, memory: &mut Vec<Line>) -> Inputs {
        let (bits, cols, stride) = (x.bits(), x.cols(), x.stride());
        let direct = if index.is_none() { rows / TILE_ROWS } else { 0 };
        let row = |i: usize| &bits[index.map_or(i, |index| index[i] as usize) * stride..][..cols];
        // rows that are read directly are there
        assert!(direct * TILE_ROWS <= x.rows(), "rows of inputs");
        let rest = rows - direct * TILE_ROWS;
        let row_bytes = 2 * stride;
        let Some(bytes) = rest.next_multiple_of(TILE_ROWS).checked_mul(row_bytes) else {
            panic!("{rest} rows of inputs")
        };
        let gathered = grown(memory, bytes);
        for i in 0..rest.next_multiple_of(TILE_ROWS) {
            // SAFETY: the memory has as many rows, and a row is as long.
            unsafe {
                let to = gathered.add(i * row_bytes);
                if i < rest {
                    to.copy_from_nonoverlapping(row(direct * TILE_ROWS + i).as_ptr().cast(), 2 * cols);
                } else {
                    to.write_bytes(0, 2 * cols);
                }
            }
        }
        Inputs { direct, start: bits.as_ptr().cast(), gathered, stride: row_bytes }
    }

    /// Address of input `from` of the first row of a tile.
    fn tile(&self, tile: usize, from: usize) -> *const u8 {
        let (rows, tile) =
            if tile < self.direct { (self.start, tile) } else { (self.gathered, tile - self.direct) };
        rows.wrapping_add(tile * TILE_ROWS * self.stride + 2 * from)
    }
}

/// The inputs of a strip.
#[derive(Clone, Copy)]
struct Part {
    steps: usize,
    /// The first.
    from: usize,
    /// Whether sums are whole after it.
    last: bool,
}

/// Multiplies some rows with a strip of `pairs` of tiles, whose first output is `first` of the weight; of these, `outs` are wanted.
///
/// # Safety
/// `strip` holds as many tiles of as many steps; `inputs` has the rows.
#[allow(clippy::too_many_arguments, reason = "one strip")]
unsafe fn multiply_strip(
    dot: &mut AmxTiles,
    inputs: &Inputs,
    rows: Range<usize>,
    (strip, pairs): (*const u8, usize),
    (first, outs): (usize, &Range<usize>),
    part: Part,
    y: &mut RowsMut<'_>,
    sums: &mut Vec<Line>,
) {
    const SUMS_LEN: usize = 2 * TILE_ROWS * NR;
    let row_tiles = rows.start / TILE_ROWS..rows.end.div_ceil(TILE_ROWS);
    let sums = grown(sums, row_tiles.len().div_ceil(2) * pairs * SUMS_LEN * size_of::<f32>()).cast::<f32>();
    let (start, distance) = y.raw_mut();
    for (i, tile) in row_tiles.clone().step_by(2).enumerate() {
        let two = tile + 1 < row_tiles.end;
        let below = rows.end.min((tile + 2) * TILE_ROWS) - tile * TILE_ROWS;
        for pair in 0..pairs {
            let right = strip.wrapping_add(pair * part.steps * 2 * TILE_BYTES);
            let block = sums.wrapping_add((i * pairs + pair) * SUMS_LEN);
            let kept = (block, NR * size_of::<f32>());
            let outputs = first + pair * NR..first + (pair + 1) * NR;
            let wanted = outs.start.max(outputs.start)..outs.end.min(outputs.end);
            let whole = wanted == outputs && below == if two { 2 * TILE_ROWS } else { TILE_ROWS };
            let out = start.wrapping_add(tile * TILE_ROWS * distance + wanted.start - outs.start);
            let to = if part.last && whole { (out, distance * size_of::<f32>()) } else { kept };
            let from = (part.from > 0).then_some((block.cast_const(), kept.1));
            let high = inputs.tile(tile, part.from);
            // SAFETY: rows and strip by the caller's promise; a block of sums is as large; where it goes to `y`, all of it lies there.
            unsafe {
                if two {
                    let low = inputs.tile(tile + 1, part.from);
                    dot.multiply::<2>(([high, low], inputs.stride), right, part.steps, from, to);
                } else {
                    dot.multiply::<1>(([high], inputs.stride), right, part.steps, from, to);
                }
            }
            if part.last && !whole {
                for row in 0..below {
                    // SAFETY: a row of the block, which was just written.
                    let sums = unsafe { std::slice::from_raw_parts(block.add(row * NR), NR) };
                    y.row_mut(tile * TILE_ROWS + row)[wanted.start - outs.start..wanted.end - outs.start]
                        .copy_from_slice(&sums[wanted.start - outputs.start..wanted.end - outputs.start]);
                }
            }
        }
    }
}
