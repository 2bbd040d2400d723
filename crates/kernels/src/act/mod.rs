//! Inputs of products: plain rows, bf16, and 8-bit blocks.

use crate::Rows;

/// Numbers of an 8-bit block.
pub const A8_BLOCK: usize = 32;

/// Prepared input rows.
#[derive(Clone, Copy)]
pub enum Acts<'a> {
    /// As they are.
    F32(Rows<'a>),
    /// Rounded to bf16.
    Bf16 {
        /// The bits, row after row.
        bits: &'a [u16],
        /// How many rows.
        rows: usize,
        /// Numbers of a row.
        cols: usize,
        /// Numbers between rows.
        stride: usize,
    },
    /// Blocks of 8-bit codes.
    A8(A8Rows<'a>),
}

impl Acts<'_> {
    /// How many rows.
    pub fn rows(&self) -> usize {
        match self {
            Acts::F32(rows) => rows.rows(),
            Acts::Bf16 { rows, .. } => *rows,
            Acts::A8(a8) => a8.rows,
        }
    }
}

/// Rows as blocks of 32 codes of 8 bits, each with a scale and two sums of 16 codes. The last block of a row is filled with zeros.
#[derive(Clone, Copy)]
pub struct A8Rows<'a> {
    codes: &'a [i8],
    scales: &'a [f32],
    sums: &'a [i16],
    rows: usize,
    cols: usize,
}

/// Lengths of the three arrays of [`A8Rows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct A8Sizes {
    /// Codes.
    pub codes: usize,
    /// Scales.
    pub scales: usize,
    /// Sums.
    pub sums: usize,
}

impl<'a> A8Rows<'a> {
    /// Lengths of the arrays for `rows` rows of `cols` numbers.
    pub fn sizes(rows: usize, cols: usize) -> A8Sizes {
        let blocks = rows * cols.div_ceil(A8_BLOCK);
        A8Sizes { codes: blocks * A8_BLOCK, scales: blocks, sums: blocks * 2 }
    }

    /// Rows over arrays of exactly the lengths of [`sizes`](Self::sizes).
    ///
    /// # Panics
    /// When a length differs.
    pub fn new(codes: &'a [i8], scales: &'a [f32], sums: &'a [i16], rows: usize, cols: usize) -> A8Rows<'a> {
        let found = A8Sizes { codes: codes.len(), scales: scales.len(), sums: sums.len() };
        assert_eq!(found, Self::sizes(rows, cols), "arrays for {rows} rows of {cols}");
        A8Rows { codes, scales, sums, rows, cols }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Codes, scales and sums of one row.
    #[inline]
    pub fn row(&self, i: usize) -> (&'a [i8], &'a [f32], &'a [i16]) {
        let blocks = self.cols.div_ceil(A8_BLOCK);
        (
            &self.codes[i * blocks * A8_BLOCK..(i + 1) * blocks * A8_BLOCK],
            &self.scales[i * blocks..(i + 1) * blocks],
            &self.sums[i * blocks * 2..(i + 1) * blocks * 2],
        )
    }
}

/// Converts one row to 8-bit blocks: scale = largest magnitude / 127, codes rounded to nearest.
///
/// # Panics
/// When the arrays are shorter than [`A8Rows::sizes`] says for one row.
pub fn quantise_a8(x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [i16]) {
    for (b, block) in x.chunks(A8_BLOCK).enumerate() {
        let largest = block.iter().fold(0.0f32, |m, v| if v.abs() > m { v.abs() } else { m });
        let finite = largest.is_finite();
        let inverse = if largest > 0.0 && finite { 127.0 / largest } else { 0.0 };
        scales[b] = if finite { largest / 127.0 } else { f32::NAN };
        let out = &mut codes[b * A8_BLOCK..(b + 1) * A8_BLOCK];
        out.fill(0);
        for (code, v) in out.iter_mut().zip(block) {
            *code = (v * inverse).round_ties_even() as i8;
        }
        for half in 0..2 {
            sums[b * 2 + half] = out[half * 16..(half + 1) * 16].iter().map(|&c| i16::from(c)).sum();
        }
    }
}

/// Rounds one row to bf16, nearest even; NaN stays NaN.
pub fn to_bf16(x: &[f32], out: &mut [u16]) {
    for (out, v) in out.iter_mut().zip(x) {
        *out = half::bf16::from_f32(*v).to_bits();
    }
}
