//! Matmul inputs: f32 rows, bf16 rows, and rows quantized to int8 blocks.

use crate::MatrixView;
use crate::shape::{ShapeError, fits, times};
use crate::simd::Simd;
#[cfg(target_arch = "x86_64")]
use crate::tiers::RowwiseIsa;
use crate::tiers::tiers;

/// Elements per int8 block.
pub const Q8_BLOCK: usize = 32;

/// 32 bf16 elements: one cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Bf16x32(pub [u16; 32]);

impl Bf16x32 {
    pub const ZERO: Bf16x32 = Bf16x32([0; 32]);

    /// Row stride in cache lines for rows of `cols` elements: odd, for the same reason as
    /// [`Q8Rows::row_blocks`].
    pub fn row_lines(cols: usize) -> usize {
        Q8Rows::row_blocks(cols)
    }

    /// The bits of all elements.
    #[allow(unsafe_code, reason = "a slice of arrays is a slice of their elements")]
    pub fn bits(lines: &[Bf16x32]) -> &[u16] {
        // SAFETY: a `Bf16x32` is 32 `u16` without padding, so `lines` is as many valid `u16`,
        // borrowed as long.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * 32) }
    }

    /// The bits of all elements, mutably.
    #[allow(unsafe_code, reason = "as above")]
    pub fn bits_mut(lines: &mut [Bf16x32]) -> &mut [u16] {
        // SAFETY: as for `bits`; the borrow is exclusive, and every pattern of a `u16` is valid.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * 32) }
    }
}

/// Input rows in the activation type that a kernel reads.
#[derive(Clone, Copy)]
pub enum QuantizedInput<'a> {
    /// Unchanged.
    F32(MatrixView<'a>),
    /// Rounded to bf16.
    Bf16(Bf16Rows<'a>),
    /// Quantized to int8 blocks.
    A8(Q8Rows<'a>),
}

impl QuantizedInput<'_> {
    pub fn rows(&self) -> usize {
        match self {
            QuantizedInput::F32(rows) => rows.rows(),
            QuantizedInput::Bf16(bf16) => bf16.rows,
            QuantizedInput::A8(a8) => a8.rows,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Bf16Rows<'a> {
    bits: &'a [u16],
    rows: usize,
    cols: usize,
    stride: usize,
}

impl<'a> Bf16Rows<'a> {
    /// `rows` rows of `cols` elements, `stride` elements apart.
    ///
    /// # Errors
    /// When `bits` is too short, the stride is less than a row (copies of rows keep the stride), or
    /// the size overflows.
    pub fn new(bits: &'a [u16], rows: usize, cols: usize, stride: usize) -> Result<Bf16Rows<'a>, ShapeError> {
        fits("rows of bf16", (rows, cols, stride), bits.len())?;
        if stride < cols {
            return Err(ShapeError::Overlap { cols, stride });
        }
        Ok(Bf16Rows { bits, rows, cols, stride })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next: at least [`cols`](Self::cols).
    pub fn stride(&self) -> usize {
        self.stride
    }

    pub fn bits(&self) -> &'a [u16] {
        self.bits
    }
}

/// 32 elements quantized to int8, with the sums that kernels need: one cache line.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub struct Q8Block {
    /// Element = scale · quant.
    pub quants: [i8; Q8_BLOCK],
    /// Largest magnitude / 127.
    pub scale: f32,
    /// scale · Σ quants: factor of the min of a weight sub-block.
    pub total: f32,
    /// `total` of each half, for formats with a scale per 16 inputs.
    pub halves: [f32; 2],
    /// −128 · Σ quants: correction for weights stored as u8 = i8 + 128 (VNNI `vpdpbusd`).
    pub bias: i32,
    /// `bias` of each half.
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

/// Rows of int8 blocks. The last block of a row is padded with zeros.
#[derive(Clone, Copy)]
pub struct Q8Rows<'a> {
    blocks: &'a [Q8Block],
    rows: usize,
    cols: usize,
}

impl<'a> Q8Rows<'a> {
    /// Row stride in blocks for rows of `cols` elements: odd, so that the same block of adjacent
    /// rows does not map to the same cache set.
    // At a stride of 4096 bytes, eight rows of 2048 inputs evicted each other from one set of L1:
    // prefill 96 instead of 132 t/s.
    // measured: docs/notes/memory-and-prefetch.md "Rows 4096 bytes apart evict each other"
    pub fn row_blocks(cols: usize) -> usize {
        cols.div_ceil(Q8_BLOCK) | 1
    }

    /// Consecutive rows in `blocks`.
    ///
    /// # Errors
    /// When the number of blocks does not match, or overflows.
    pub fn new(blocks: &'a [Q8Block], rows: usize, cols: usize) -> Result<Q8Rows<'a>, ShapeError> {
        let needed = times("rows of 8-bit blocks", rows, Self::row_blocks(cols))?;
        if blocks.len() != needed {
            return Err(ShapeError::Length { what: "rows of 8-bit blocks", needed, found: blocks.len() });
        }
        Ok(Q8Rows { blocks, rows, cols })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    #[inline]
    pub fn row(&self, i: usize) -> &'a [Q8Block] {
        let blocks = Self::row_blocks(self.cols);
        &self.blocks[i * blocks..(i + 1) * blocks]
    }
}

/// Quantizes one row to int8 blocks: scale = largest magnitude / 127, quants rounded to nearest
/// even. A block with an infinity or NaN gets the scale NaN.
#[allow(unsafe_code, reason = "the token of an ISA proves its instructions")]
pub fn quantize_q8(x: &[f32], blocks: &mut [Q8Block]) {
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx2;
        fn avx2(x: &[f32], blocks: &mut [Q8Block]) {
            // SAFETY: this function is compiled for the ISA, and its caller holds the ISA's token.
            unsafe { quantize::<crate::simd::avx2::Avx2<false>>(x, blocks) }
        }
    }
    #[cfg(target_arch = "x86_64")]
    crate::isa::isa_fn! { Avx512;
        fn avx512(x: &[f32], blocks: &mut [Q8Block]) {
            // SAFETY: this function is compiled for the ISA, and its caller holds the ISA's token.
            unsafe { quantize::<crate::simd::avx512::Avx512>(x, blocks) }
        }
    }
    #[cfg(target_arch = "x86_64")]
    match crate::tiers::active_isa() {
        // SAFETY: the token proves the features that the function is compiled for.
        RowwiseIsa::Avx512(_) => return unsafe { avx512(x, blocks) },
        // SAFETY: the token proves the features that the function is compiled for.
        RowwiseIsa::Avx2(_) => return unsafe { avx2(x, blocks) },
        RowwiseIsa::Portable => {}
    }
    // SAFETY: `Portable` is plain Rust and runs on any CPU.
    unsafe { quantize::<crate::simd::portable::PortableSimd>(x, blocks) }
}

/// Scale and inverse scale for quants from −127 to 127, given the largest magnitude; `None` unless
/// it is finite.
#[inline(always)]
pub(crate) fn code_scale(largest: f32) -> Option<(f32, f32)> {
    // The inverse overflows for blocks of zeros or tiny subnormals, and 0 · ∞ is NaN. With an
    // inverse of 0 all quants are 0.
    let inverse = 127.0 / largest;
    largest.is_finite().then(|| (largest / 127.0, if inverse.is_finite() { inverse } else { 0.0 }))
}

/// [`quantize_q8`] for one ISA.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
unsafe fn quantize<L: Simd>(x: &[f32], blocks: &mut [Q8Block]) {
    let (whole, tail) = x.as_chunks();
    let mut blocks = blocks.iter_mut();
    for (numbers, block) in whole.iter().zip(blocks.by_ref()) {
        // SAFETY: the ISA by this function's contract.
        unsafe { quantize_block::<L>(numbers, block) }
    }
    // Zeros change neither the scale nor the sums, and kernels need no special case for the last
    // block.
    if let (false, Some(block)) = (tail.is_empty(), blocks.next()) {
        let mut padded = [0.0; Q8_BLOCK];
        padded[..tail.len()].copy_from_slice(tail);
        // SAFETY: the ISA by this function's contract.
        unsafe { quantize_block::<L>(&padded, block) }
    }
}

/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
#[allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]
unsafe fn quantize_block<L: Simd>(x: &[f32; Q8_BLOCK], block: &mut Q8Block) {
    // SAFETY: the ISA by this function's contract; the array has 32 elements.
    let largest = f32::from_bits(unsafe { L::max_abs_bits(x) });
    let Some((scale, inverse)) = code_scale(largest) else {
        // Every term that a kernel adds has one of these factors, so the outputs become NaN instead
        // of plausible numbers.
        *block = Q8Block { scale: f32::NAN, total: f32::NAN, halves: [f32::NAN; 2], ..Q8Block::ZERO };
        return;
    };
    block.scale = scale;
    // SAFETY: the ISA by this function's contract; both arrays have 32 elements.
    let sums = unsafe { L::quantize(x, inverse, &mut block.quants) };
    block.total = block.scale * (sums[0] + sums[1]) as f32;
    block.bias = -128 * (sums[0] + sums[1]);
    for (half, sum) in sums.into_iter().enumerate() {
        block.halves[half] = block.scale * sum as f32;
        block.half_biases[half] = -128 * sum;
    }
}

tiers! {
    /// Rounds one row to bf16, to nearest even; NaN stays NaN.
    pub fn to_bf16(x: &[f32], out: &mut [u16]) {
        for (out, v) in out.iter_mut().zip(x) {
            let bits = v.to_bits();
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            // A NaN keeps its upper bits and becomes quiet: rounding could carry it into infinity
            // or a number.
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
        // Copies of such rows, `stride` apart, would end beyond their memory.
        assert_eq!(Bf16Rows::new(&bits, 1, 32, 8).err(), Some(ShapeError::Overlap { cols: 32, stride: 8 }));
        assert!(Bf16Rows::new(&bits, 2, 32, 33).is_err());
        assert!(Bf16Rows::new(&bits, 3, 32, usize::MAX / 2 + 1 - 16).is_err());
        let blocks = [Q8Block::ZERO; 3];
        assert!(Q8Rows::new(&blocks, 1, 96).is_ok());
        assert!(Q8Rows::new(&blocks, 1, 97).is_err());
        // The product of rows and blocks per row wraps to 3.
        assert_eq!(
            Q8Rows::new(&blocks, usize::MAX / 3 + 2, 96).err(),
            Some(ShapeError::Overflow { what: "rows of 8-bit blocks" })
        );
    }
}
