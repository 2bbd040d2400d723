//! Inputs of products: plain rows, bf16, and 8-bit blocks.

use crate::Rows;
use crate::shape::{ShapeError, fits, times};
use crate::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::tiers::Isa;
use crate::tiers::tiers;

/// Numbers of an 8-bit block.
pub const Q8_BLOCK: usize = 32;

/// 32 numbers as bf16: a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Bf16x32(pub [u16; 32]);

impl Bf16x32 {
    /// 32 zeros.
    pub const ZERO: Bf16x32 = Bf16x32([0; 32]);

    /// Lines from one row of `cols` numbers to the next: an odd number, for the reason that [`Q8Rows::row_blocks`] has.
    pub fn row_lines(cols: usize) -> usize {
        Q8Rows::row_blocks(cols)
    }

    /// The numbers of all lines.
    #[allow(unsafe_code, reason = "lines are arrays of numbers, one after the other")]
    pub fn bits(lines: &[Bf16x32]) -> &[u16] {
        // SAFETY: a line is 32 numbers without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 32) }
    }

    /// The numbers of all lines, to be written.
    #[allow(unsafe_code, reason = "as above")]
    pub fn bits_mut(lines: &mut [Bf16x32]) -> &mut [u16] {
        // SAFETY: a line is 32 numbers without padding, of which every pattern is valid.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 32) }
    }
}

/// Prepared input rows.
#[derive(Clone, Copy)]
pub enum QuantizedInput<'a> {
    /// As they are.
    F32(Rows<'a>),
    /// Rounded to bf16.
    Bf16(Bf16Rows<'a>),
    /// Blocks of 8-bit codes.
    A8(Q8Rows<'a>),
}

impl QuantizedInput<'_> {
    /// How many rows.
    pub fn rows(&self) -> usize {
        match self {
            QuantizedInput::F32(rows) => rows.rows(),
            QuantizedInput::Bf16(bf16) => bf16.rows,
            QuantizedInput::A8(a8) => a8.rows,
        }
    }
}

/// Rows of bf16.
#[derive(Clone, Copy)]
pub struct Bf16Rows<'a> {
    bits: &'a [u16],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Bf16Rows<'a> {
    /// `rows` rows of `cols` numbers, `stride` numbers apart.
    ///
    /// # Errors
    /// When `bits` is too short, the stride is less than a row (rows are copied with their distance), or the size overflows.
    pub fn new(bits: &'a [u16], rows: usize, cols: usize, stride: usize) -> Result<Bf16Rows<'a>, ShapeError> {
        fits("rows of bf16", (rows, cols, stride), bits.len())?;
        if stride < cols {
            return Err(ShapeError::Overlap { cols, stride });
        }
        Ok(Bf16Rows { bits, rows, cols, stride })
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Numbers from one row to the next: at least those of a row.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The bits of all rows.
    pub fn bits(&self) -> &'a [u16] {
        self.bits
    }
}

/// 32 numbers in 8 bits: a cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Q8Block {
    /// The codes: number = scale · code.
    pub quants: [i8; Q8_BLOCK],
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

impl Q8Block {
    /// 32 zeros.
    pub const ZERO: Q8Block = Q8Block {
        quants: [0; Q8_BLOCK],
        scale: 0.0,
        total: 0.0,
        halves: [0.0; 2],
        bias: 0,
        half_biases: [0; 2],
    };
}

/// Rows as blocks of 32 codes of 8 bits. The last block of a row is filled with zeros.
#[derive(Clone, Copy)]
pub struct Q8Rows<'a> {
    blocks: &'a [Q8Block],
    rows: usize,
    cols: usize,
}

impl<'a> Q8Rows<'a> {
    /// Blocks from one row of `cols` numbers to the next: an odd number, so that the same block of neighbouring rows does not fall into
    /// the same set of a cache.
    pub fn row_blocks(cols: usize) -> usize {
        cols.div_ceil(Q8_BLOCK) | 1
    }

    /// Rows over `blocks`, row after row.
    ///
    /// # Errors
    /// When there are not as many blocks, or their number overflows.
    pub fn new(blocks: &'a [Q8Block], rows: usize, cols: usize) -> Result<Q8Rows<'a>, ShapeError> {
        let needed = times("rows of 8-bit blocks", rows, Self::row_blocks(cols))?;
        if blocks.len() != needed {
            return Err(ShapeError::Length { what: "rows of 8-bit blocks", needed, found: blocks.len() });
        }
        Ok(Q8Rows { blocks, rows, cols })
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
    pub fn row(&self, i: usize) -> &'a [Q8Block] {
        let blocks = Self::row_blocks(self.cols);
        &self.blocks[i * blocks..(i + 1) * blocks]
    }
}

/// Converts one row to 8-bit blocks: scale = largest magnitude / 127, codes rounded to nearest, even.
/// A block with an infinite number or NaN becomes NaN.
#[allow(unsafe_code, reason = "the processor was asked for the instructions")]
pub fn quantize_q8(x: &[f32], blocks: &mut [Q8Block]) {
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx2;
        fn avx2(x: &[f32], blocks: &mut [Q8Block]) {
            // SAFETY: compiled for AVX2.
            unsafe { quantize::<crate::simd::avx2::Avx2<false>>(x, blocks) }
        }
    }
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx512;
        fn avx512(x: &[f32], blocks: &mut [Q8Block]) {
            // SAFETY: compiled for AVX-512.
            unsafe { quantize::<crate::simd::avx512::Avx512>(x, blocks) }
        }
    }
    #[cfg(target_arch = "x86_64")]
    match crate::tiers::active_isa() {
        // SAFETY: the token proves the features that the function is compiled for.
        Isa::Avx512(_) => return unsafe { avx512(x, blocks) },
        // SAFETY: the token proves the features that the function is compiled for.
        Isa::Avx2(_) => return unsafe { avx2(x, blocks) },
        Isa::Portable => {}
    }
    // SAFETY: `Portable` is plain Rust and runs on any CPU.
    unsafe { quantize::<crate::simd::portable::Portable>(x, blocks) }
}

/// The scale of codes from −127 to 127 for numbers up to a magnitude, and what numbers are multiplied by to be codes: 0 where they are too small for a
/// finite factor. None where a number is not finite.
#[inline(always)]
pub(crate) fn code_scale(largest: f32) -> Option<(f32, f32)> {
    let inverse = 127.0 / largest;
    largest.is_finite().then(|| (largest / 127.0, if inverse.is_finite() { inverse } else { 0.0 }))
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
unsafe fn quantize<L: Simd>(x: &[f32], blocks: &mut [Q8Block]) {
    let (whole, rest) = x.as_chunks();
    let mut blocks = blocks.iter_mut();
    for (numbers, block) in whole.iter().zip(blocks.by_ref()) {
        // SAFETY: the caller's promise.
        unsafe { quantize_block::<L>(numbers, block) }
    }
    if let (false, Some(block)) = (rest.is_empty(), blocks.next()) {
        let mut padded = [0.0; Q8_BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        // SAFETY: as above.
        unsafe { quantize_block::<L>(&padded, block) }
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
unsafe fn quantize_block<L: Simd>(x: &[f32; Q8_BLOCK], block: &mut Q8Block) {
    // SAFETY: the caller's promise.
    let largest = f32::from_bits(unsafe { L::max_abs_bits(x) });
    let Some((scale, inverse)) = code_scale(largest) else {
        *block = Q8Block { scale: f32::NAN, total: f32::NAN, halves: [f32::NAN; 2], ..Q8Block::ZERO };
        return;
    };
    block.scale = scale;
    // SAFETY: as above.
    let sums = unsafe { L::quantize(x, inverse, &mut block.quants) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_another_size_than_their_memory_are_refused() {
        let bits = [0; 64];
        assert!(Bf16Rows::new(&bits, 2, 32, 32).is_ok());
        // copies of such rows, `stride` apart, would end beyond their memory
        assert_eq!(Bf16Rows::new(&bits, 1, 32, 8).err(), Some(ShapeError::Overlap { cols: 32, stride: 8 }));
        assert!(Bf16Rows::new(&bits, 2, 32, 33).is_err());
        assert!(Bf16Rows::new(&bits, 3, 32, usize::MAX / 2 + 1 - 16).is_err());
        let blocks = [Q8Block::ZERO; 3];
        assert!(Q8Rows::new(&blocks, 1, 96).is_ok());
        assert!(Q8Rows::new(&blocks, 1, 97).is_err());
        // rows · blocks of a row wraps to 3
        assert_eq!(
            Q8Rows::new(&blocks, usize::MAX / 3 + 2, 96).err(),
            Some(ShapeError::Overflow { what: "rows of 8-bit blocks" })
        );
    }
}
