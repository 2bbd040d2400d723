//! Element types of expanded keys and values, and their memory layout.

mod bf16;

use crate::kv_cache::load_part;
use half::f16;
use latent_types::{CacheRow, CacheType};
use std::ops::Range;

/// Cached rows of a block of f32 or f16 keys. Blocks are stored transposed, element by element, so
/// that keys are lanes.
// At most `F16_CHAIN`: the f16 kernels sum the weighted values of a block in one f16 accumulator.
pub const KEYS: usize = 64;

/// An element of expanded keys and values: f32; f16 if the CPU has f16 arithmetic; bf16 if it has
/// AMX or AVX512-BF16.
///
/// Cached rows are in blocks. A block of keys or values of `width` elements takes `padded(width) ·
/// KV_BLOCK` elements of memory. The trait is sealed, since kernels read memory by addresses that
/// its implementations define.
pub trait KvElement: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Cached rows of a block.
    const KV_BLOCK: usize;

    /// Queries per call that amortize reading keys and values. Callers use fewer if this gives too
    /// few tasks for all workers.
    const Q_TILE: usize;

    const ZERO: Self;

    /// Elements that a row of a block takes, padding included.
    fn padded(width: usize) -> usize;

    /// Index of element `n` of the key of a cached row, in blocks of `width` elements.
    fn key_offset(width: usize, row: usize, n: usize) -> usize;

    /// Index of element `n` of the value of a cached row.
    fn value_offset(width: usize, row: usize, n: usize) -> usize;

    /// Reads elements of a cached row, from `first` on, rounded to nearest and clamped to the
    /// finite range.
    ///
    /// # Panics
    /// When elements are beyond the row.
    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [Self]);

    /// Packs some elements of at most [`KV_BLOCK`](Self::KV_BLOCK) cached rows as a block of keys.
    ///
    /// # Panics
    /// When a row is shorter, or the length of `out` is not one block.
    fn pack_keys<'a>(
        row: CacheRow,
        rows: impl Iterator<Item = &'a [u8]>,
        elements: Range<usize>,
        out: &mut [Self],
    );

    /// Packs rows of values as a block, rounded as in [`load`](KvElement::load).
    ///
    /// # Panics
    /// When `values` is not whole rows, exceeds a block, or the length of `out` is not one block.
    fn pack_values(values: &[f32], width: usize, out: &mut [Self]);
}

mod sealed {
    /// Implemented by this crate alone.
    pub trait Sealed {}

    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// Elements of a cached row that are transposed at a time. A square of 64 × 64 f32 is 16 KB, so
/// that it stays in L1.
const TRANSPOSE_WIDTH: usize = 64;

/// Packs keys transposed: a line of [`KEYS`] rows per element, padded with zeros.
fn pack_transposed<'a, N: KvElement>(
    row: CacheRow,
    rows: impl Iterator<Item = &'a [u8]>,
    elements: Range<usize>,
    out: &mut [N],
) {
    assert_eq!(out.len(), elements.len() * KEYS, "a block of keys");
    let (mut keys, mut count) = ([&[][..]; KEYS], 0);
    for (place, row) in keys.iter_mut().zip(rows) {
        *place = row;
        count += 1;
    }
    // Through a square, so that both the reads of rows and the writes of lines are sequential.
    // Missing rows stay zero.
    let mut square = [[N::ZERO; TRANSPOSE_WIDTH]; KEYS];
    for from in (0..elements.len()).step_by(TRANSPOSE_WIDTH) {
        let width = TRANSPOSE_WIDTH.min(elements.len() - from);
        for (bytes, line) in keys[..count].iter().zip(&mut square) {
            N::load(row, bytes, elements.start + from, &mut line[..width]);
        }
        for (n, line) in out[from * KEYS..(from + width) * KEYS].chunks_exact_mut(KEYS).enumerate() {
            for (element, row) in line.iter_mut().zip(&square) {
                *element = row[n];
            }
        }
    }
}

/// The layout of f32 and f16: transposed keys, and values in rows.
macro_rules! transposed_keys {
    () => {
        const KV_BLOCK: usize = KEYS;
        const Q_TILE: usize = 64;

        fn padded(width: usize) -> usize {
            width
        }

        fn key_offset(width: usize, row: usize, n: usize) -> usize {
            (row / KEYS * width + n) * KEYS + row % KEYS
        }

        fn value_offset(width: usize, row: usize, n: usize) -> usize {
            row * width + n
        }

        fn pack_keys<'a>(
            row: CacheRow,
            rows: impl Iterator<Item = &'a [u8]>,
            elements: Range<usize>,
            out: &mut [Self],
        ) {
            pack_transposed(row, rows, elements, out);
        }
    };
}

impl KvElement for f32 {
    transposed_keys!();

    const ZERO: f32 = 0.0;

    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [f32]) {
        load_part(row, bytes, first, out);
    }

    fn pack_values(values: &[f32], _width: usize, out: &mut [f32]) {
        out[..values.len()].copy_from_slice(values);
    }
}

impl KvElement for f16 {
    transposed_keys!();

    const ZERO: f16 = f16::ZERO;

    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [f16]) {
        if row.ty == CacheType::F16 {
            let bytes = &bytes[first * 2..(first + out.len()) * 2];
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = f16::from_le_bytes([v[0], v[1]]);
            }
        } else {
            let mut wide = [0.0; 16];
            for (i, out) in out.chunks_mut(16).enumerate() {
                load_part(row, bytes, first + 16 * i, &mut wide[..out.len()]);
                round(&wide[..out.len()], out);
            }
        }
    }

    fn pack_values(values: &[f32], _width: usize, out: &mut [f16]) {
        round(values, &mut out[..values.len()]);
    }
}

/// Rounds to nearest f16, clamped to the finite range: one infinity would make a whole row of
/// scores NaN.
fn round(from: &[f32], out: &mut [f16]) {
    use half::slice::HalfFloatSliceExt;
    let largest = f16::MAX.to_f32();
    let mut bounded = [0.0; 16];
    for (from, out) in from.chunks(16).zip(out.chunks_mut(16)) {
        let bounded = &mut bounded[..from.len()];
        bounded.copy_from_slice(from);
        bounded.iter_mut().for_each(|v| *v = v.clamp(-largest, largest));
        out.convert_from_f32_slice(bounded);
    }
}
