//! Inputs of products: plain rows, bf16, and 8-bit blocks.

use crate::Rows;
use crate::lanes::Lanes;
use crate::tiers::tiers;
use base::Tier;

/// Numbers of an 8-bit block.
pub const A8_BLOCK: usize = 32;

/// 32 numbers as bf16: a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Bf16Line(pub [u16; 32]);

impl Bf16Line {
    /// 32 zeros.
    pub const ZERO: Bf16Line = Bf16Line([0; 32]);

    /// Lines from one row of `cols` numbers to the next: an odd number, for the reason that [`A8Rows::row_blocks`] has.
    pub fn row_lines(cols: usize) -> usize {
        A8Rows::row_blocks(cols)
    }

    /// The numbers of all lines.
    #[allow(unsafe_code, reason = "lines are arrays of numbers, one after the other")]
    pub fn bits(lines: &[Bf16Line]) -> &[u16] {
        // SAFETY: a line is 32 numbers without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 32) }
    }

    /// The numbers of all lines, to be written.
    #[allow(unsafe_code, reason = "as above")]
    pub fn bits_mut(lines: &mut [Bf16Line]) -> &mut [u16] {
        // SAFETY: a line is 32 numbers without padding, of which every pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 32) }
    }
}

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

/// 32 numbers in 8 bits: a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct A8Block {
    /// The codes: number = scale · code.
    pub codes: [i8; A8_BLOCK],
    /// Largest magnitude / 127.
    pub scale: f32,
    /// scale · Σ codes: what a constant in all 32 weights is multiplied by.
    pub total: f32,
    /// The same for each half.
    pub halves: [f32; 2],
    /// −128 · Σ codes: what takes back that signed numbers of weights are raised by 128 where only unsigned ones are multiplied.
    pub bias: i32,
    /// The same for each half.
    pub half_biases: [i32; 2],
}

impl A8Block {
    /// 32 zeros.
    pub const ZERO: A8Block = A8Block {
        codes: [0; A8_BLOCK],
        scale: 0.0,
        total: 0.0,
        halves: [0.0; 2],
        bias: 0,
        half_biases: [0; 2],
    };
}

/// Rows as blocks of 32 codes of 8 bits. The last block of a row is filled with zeros.
#[derive(Clone, Copy)]
pub struct A8Rows<'a> {
    blocks: &'a [A8Block],
    rows: usize,
    cols: usize,
}

impl<'a> A8Rows<'a> {
    /// Blocks from one row of `cols` numbers to the next: an odd number, so that the same block of neighbouring rows does not fall into
    /// the same set of a cache.
    pub fn row_blocks(cols: usize) -> usize {
        cols.div_ceil(A8_BLOCK) | 1
    }

    /// Rows over `blocks`, row after row.
    ///
    /// # Panics
    /// When there are not as many blocks.
    pub fn new(blocks: &'a [A8Block], rows: usize, cols: usize) -> A8Rows<'a> {
        assert_eq!(blocks.len(), rows * Self::row_blocks(cols), "blocks of {rows} rows of {cols}");
        A8Rows { blocks, rows, cols }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The blocks of one row.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [A8Block] {
        let blocks = Self::row_blocks(self.cols);
        &self.blocks[i * blocks..(i + 1) * blocks]
    }
}

/// Converts one row to 8-bit blocks: scale = largest magnitude / 127, codes rounded to nearest, even.
/// A block with an infinite number or NaN becomes NaN.
#[allow(unsafe_code, reason = "the processor was asked for the instructions")]
pub fn quantise_a8(x: &[f32], blocks: &mut [A8Block]) {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn avx2(x: &[f32], blocks: &mut [A8Block]) {
        // SAFETY: compiled for AVX2.
        unsafe { quantise::<crate::lanes::avx2::Avx2<false>>(x, blocks) }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni,avx2,fma,f16c")]
    fn avx512(x: &[f32], blocks: &mut [A8Block]) {
        // SAFETY: compiled for AVX-512.
        unsafe { quantise::<crate::lanes::avx512::Avx512>(x, blocks) }
    }
    match crate::tiers::active() {
        // SAFETY: the processor has the features of the tier.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Amx => unsafe { avx512(x, blocks) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => unsafe { avx2(x, blocks) },
        // SAFETY: plain Rust.
        _ => unsafe { quantise::<crate::lanes::portable::Portable>(x, blocks) },
    }
}

/// The scale of codes from −127 to 127 for numbers up to a magnitude, and what numbers are multiplied by to be codes: 0 where they are too small for a
/// finite factor. None where a number is not finite.
#[inline(always)]
pub(crate) fn code_scale(largest: f32) -> Option<(f32, f32)> {
    let inverse = 127.0 / largest;
    largest.is_finite().then(|| (largest / 127.0, if inverse.is_finite() { inverse } else { 0.0 }))
}

/// # Safety
/// As for [`Lanes`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Lanes`")]
unsafe fn quantise<L: Lanes>(x: &[f32], blocks: &mut [A8Block]) {
    let (whole, rest) = x.as_chunks();
    let mut blocks = blocks.iter_mut();
    for (numbers, block) in whole.iter().zip(blocks.by_ref()) {
        // SAFETY: the caller's promise.
        unsafe { quantise_block::<L>(numbers, block) }
    }
    if let (false, Some(block)) = (rest.is_empty(), blocks.next()) {
        let mut padded = [0.0; A8_BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        // SAFETY: as above.
        unsafe { quantise_block::<L>(&padded, block) }
    }
}

/// # Safety
/// As for [`Lanes`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Lanes`")]
unsafe fn quantise_block<L: Lanes>(x: &[f32; A8_BLOCK], block: &mut A8Block) {
    // SAFETY: the caller's promise.
    let largest = f32::from_bits(unsafe { L::largest_bits(x) });
    let Some((scale, inverse)) = code_scale(largest) else {
        *block = A8Block { scale: f32::NAN, total: f32::NAN, halves: [f32::NAN; 2], ..A8Block::ZERO };
        return;
    };
    block.scale = scale;
    // SAFETY: as above.
    let sums = unsafe { L::codes(x, inverse, &mut block.codes) };
    block.total = block.scale * (sums[0] + sums[1]) as f32;
    block.bias = -128 * (sums[0] + sums[1]);
    for (half, sum) in sums.into_iter().enumerate() {
        block.halves[half] = block.scale * sum as f32;
        block.half_biases[half] = -128 * sum;
    }
}

tiers! {
    /// Rounds one row to bf16, nearest even; NaN stays NaN.
    pub fn to_bf16(x: &[f32], out: &mut [u16]) {
        for (out, v) in out.iter_mut().zip(x) {
            let bits = v.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // a NaN keeps its upper bits and is made quiet, lest rounding carry it to another number
            *out = if v.is_nan() { (bits >> 16) | 0x40 } else { rounded } as u16;
        }
    }
}
