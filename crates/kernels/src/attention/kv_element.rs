//! What expanded keys and values are made of, and where they lie.

use super::KEYS;
use super::cache::load_part;
use half::f16;
use latent_types::{CacheRow, CacheType};
use std::ops::Range;

/// A number of expanded keys and values: f32; f16 where the processor multiplies f16; bf16 where it multiplies tiles.
///
/// Cached rows come in blocks. A block of keys of `width` numbers, or of values, takes `padded(width) · KV_BLOCK` numbers of memory. There are no other
/// implementations than those of this crate: memory is read by address as they say.
pub trait KvElement: sealed::Sealed + Copy + Send + Sync + 'static {
    /// Cached rows of a block.
    const KV_BLOCK: usize;

    /// Queries of a call at which keys and values are read from memory seldom enough.
    const Q_TILE: usize;

    /// Zero.
    const ZERO: Self;

    /// Numbers that a row of a block takes.
    fn padded(width: usize) -> usize;

    /// Where number `n` of the key of a cached row lies, in blocks of `width` numbers.
    fn key_offset(width: usize, row: usize, n: usize) -> usize;

    /// The same of values.
    fn value_offset(width: usize, row: usize, n: usize) -> usize;

    /// Reads some numbers of a cached row, from `first` on, each rounded to the nearest, or the largest where it is larger.
    ///
    /// # Panics
    /// When they are beyond the row.
    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [Self]);

    /// Lays some numbers of cached rows as a block of keys: of at most a block of rows.
    ///
    /// # Panics
    /// When a row is shorter, or `out` is no block.
    fn pack_keys<'a>(
        row: CacheRow,
        rows: impl Iterator<Item = &'a [u8]>,
        numbers: Range<usize>,
        out: &mut [Self],
    );

    /// Lays rows of values, one after the other, as a block, rounded as in [`load`](KvElement::load).
    ///
    /// # Panics
    /// When they are no rows, more than a block, or `out` is no block.
    fn pack_values(values: &[f32], width: usize, out: &mut [Self]);
}

mod sealed {
    /// What only this crate implements.
    pub trait Sealed {}

    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// Numbers of a cached row that are turned at a time.
const TRANSPOSE_WIDTH: usize = 64;

/// Keys as lines: a number of [`KEYS`] rows side by side, zeros where there are fewer rows.
fn pack_lines<'a, N: KvElement>(
    row: CacheRow,
    rows: impl Iterator<Item = &'a [u8]>,
    numbers: Range<usize>,
    out: &mut [N],
) {
    assert_eq!(out.len(), numbers.len() * KEYS, "a block of keys");
    let (mut all, mut count) = ([&[][..]; KEYS], 0);
    for (place, row) in all.iter_mut().zip(rows) {
        *place = row;
        count += 1;
    }
    let mut piece = [[N::ZERO; TRANSPOSE_WIDTH]; KEYS];
    for from in (0..numbers.len()).step_by(TRANSPOSE_WIDTH) {
        let taken = TRANSPOSE_WIDTH.min(numbers.len() - from);
        for (bytes, line) in all[..count].iter().zip(&mut piece) {
            N::load(row, bytes, numbers.start + from, &mut line[..taken]);
        }
        for (n, line) in out[from * KEYS..(from + taken) * KEYS].chunks_exact_mut(KEYS).enumerate() {
            for (number, row) in line.iter_mut().zip(&piece) {
                *number = row[n];
            }
        }
    }
}

/// Where numbers of keys in lines, and of values in rows, lie.
macro_rules! lines {
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
            numbers: Range<usize>,
            out: &mut [Self],
        ) {
            pack_lines(row, rows, numbers, out);
        }
    };
}

impl KvElement for f32 {
    lines!();

    const ZERO: f32 = 0.0;

    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [f32]) {
        load_part(row, bytes, first, out);
    }

    fn pack_values(values: &[f32], _width: usize, out: &mut [f32]) {
        out[..values.len()].copy_from_slice(values);
    }
}

impl KvElement for f16 {
    lines!();

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

/// Rounds to the nearest f16, the largest where a number is larger.
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
