//! Kernels of AVX2 without VNNI, which sum products in 16 bits: `narrow` has the bounds.

use super::dots::zero_point_term;
use super::formats::{QuantFormat, QuantKind};
use super::microkernel_block::{AFFINE, CONST_ZERO, MR, MicrokernelBlock};
use super::narrow::{BIAS16_SHIFT, SMALL_ZERO_POINT, depth_of, uses_bias16};
use crate::activation::{Q8_BLOCK, Q8Block};
use crate::matmul::scratch::CacheLine;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Biases 64 signed quants by [`SMALL_ZERO_POINT`].
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it.
#[inline(always)]
pub(super) unsafe fn bias16(quants: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: register operations of an ISA that the CPU has by this function's contract.
    unsafe {
        let zero_point = _mm256_set1_epi8(SMALL_ZERO_POINT as i8);
        [_mm256_add_epi8(quants[0], zero_point), _mm256_add_epi8(quants[1], zero_point)]
    }
}

/// [`QuantGemm::dots`](super::microkernel::QuantGemm::dots) of quants that are not full bytes.
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it.
#[inline(always)]
pub(super) unsafe fn dots<F: QuantFormat, const N: usize>(
    quants: &[[__m256i; 2]; 8],
    part: usize,
    bias: i32,
    x: &[i8; Q8_BLOCK],
) -> [__m256i; 2] {
    // SAFETY: vector j multiplies inputs 4j to 4j + 3, and j is below 8; the ISA by this function's
    // contract.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut ints = match F::KIND {
            QuantKind::Symmetric => [_mm256_set1_epi32(zero_point_term(bias, BIAS16_SHIFT)); 2],
            QuantKind::ConstZero(_) => [_mm256_set1_epi32(zero_point_term(bias, F::KIND.shift())); 2],
            QuantKind::Affine => [_mm256_setzero_si256(); 2],
        };
        let depth = const { if depth_of::<F>() < N { depth_of::<F>() } else { N } };
        // `depth` results of `vpmaddubsw` are added in 16 bits, which cannot overflow, and then
        // widened by `vpmaddwd` with ones.
        for first in (part * N..part * N + N).step_by(depth) {
            let mut pairs = [_mm256_setzero_si256(); 2];
            for j in first..first + depth {
                let x = _mm256_set1_epi32(x.as_ptr().add(4 * j).cast::<i32>().read_unaligned());
                let quants = if const { uses_bias16::<F>() } { bias16(quants[j]) } else { quants[j] };
                for t in 0..2 {
                    let products = _mm256_maddubs_epi16(quants[t], x);
                    pairs[t] = if j == first { products } else { _mm256_add_epi16(pairs[t], products) };
                }
            }
            for t in 0..2 {
                ints[t] = _mm256_add_epi32(ints[t], _mm256_madd_epi16(pairs[t], ones));
            }
        }
        ints
    }
}

/// Integer sums of a microkernel block: the sixteen outputs of a row are two vectors.
type BlockSums = [[__m256i; 2]; MR];

/// A vector on the stack.
#[repr(align(32))]
struct AlignedVector(#[expect(dead_code, reason = "only its address is used")] [u8; 32]);

/// Vector pair `j` of a sub-block's quants: four inputs of each of sixteen outputs.
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it. `lines` are those of a sub-block, and `j`
/// is below 8.
#[inline(always)]
unsafe fn quants_of(lines: *const CacheLine, j: usize) -> [__m256i; 2] {
    // SAFETY: a line is two vectors; the rest by this function's contract.
    unsafe {
        let quants: *const __m256i = lines.add(j).cast();
        [_mm256_load_si256(quants), _mm256_load_si256(quants.add(1))]
    }
}

/// The four inputs that belong to vector pair `j` of the quants, repeated for each of eight
/// outputs.
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it; `j` is below 8.
#[inline(always)]
unsafe fn inputs_of(block: *const Q8Block, j: usize) -> __m256i {
    // SAFETY: a block has 32 inputs; the rest by this function's contract.
    unsafe { _mm256_set1_epi32((*block).quants.as_ptr().add(4 * j).cast::<i32>().read_unaligned()) }
}

/// Makes the compiler compute the sums here, before it loads anything else.
// Otherwise it regroups the additions, loads the quants of all products first, and spills them.
// measured: docs/notes/gemv-and-gemm.md "Sums in 16 bits on AVX2"
// A macro, since a function with `asm!` operands in these registers must be compiled for the ISA.
macro_rules! compute_now {
    ($sums:expr) => {
        for [a, b] in &mut $sums {
            asm!("/* {0} {1} */", inout(ymm_reg) * a, inout(ymm_reg) * b, options(nostack, preserves_flags));
        }
    };
}

crate::isa::isa_fn! { Avx2;
    /// Integer sums over `n` vector pairs of quants from `first` on, with `DEPTH` products of pairs
    /// added in 16 bits.
    ///
    /// # Safety
    /// The CPU has AVX2, and the caller is compiled for it. `lines` are those of a sub-block, and
    /// `x` its inputs.
    #[inline]
    unsafe fn narrow_sums<const DEPTH: usize>(
        lines: *const CacheLine,
        (first, n): (usize, usize),
        x: &[*const Q8Block; MR],
    ) -> BlockSums {
        // SAFETY: indices stay below eight, which a sub-block has; the ISA by this function's
        // contract.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut ints = [[_mm256_setzero_si256(); 2]; MR];
            for part in 0..n.div_ceil(DEPTH) {
                let mut pairs = [[_mm256_setzero_si256(); 2]; MR];
                for i in 0..DEPTH {
                    let j = first + part * DEPTH + i;
                    let quants = quants_of(lines, j);
                    for r in 0..MR {
                        let input = inputs_of(x[r], j);
                        for t in 0..2 {
                            let products = _mm256_maddubs_epi16(quants[t], input);
                            pairs[r][t] = if i == 0 { products } else { _mm256_add_epi16(pairs[r][t], products) };
                        }
                    }
                    compute_now!(pairs);
                }
                for r in 0..MR {
                    for t in 0..2 {
                        let wide = _mm256_madd_epi16(pairs[r][t], ones);
                        ints[r][t] = if part == 0 { wide } else { _mm256_add_epi32(ints[r][t], wide) };
                    }
                }
            }
            ints
        }
    }
}

crate::isa::isa_fn! { Avx2;
    /// Integer sums over `n` vector pairs of signed quants that are full bytes: two sums of pairs
    /// would not fit 16 bits.
    ///
    /// w · x is |w| · x, or |w| · !x + |w| if w is negative, since −x = !x + 1. The sum of the last
    /// terms does not depend on x and is unpacked as a line of its own ([`store_negatives`]).
    // `vpsignb` would negate in one instruction, but on Zen 4 it shares two ports with the
    // products, while `vpxor` runs on all four vector ports: Q8_0 121 → 145 GFLOP/s. A pair of
    // products is at most 2 · 128 · 127 and at least −2 · 128 · 128 = i16::MIN, so it does not
    // saturate.
    // measured: docs/notes/gemv-and-gemm.md "Sums in 16 bits on AVX2"
    ///
    /// # Safety
    /// As `narrow_sums`, with the line of sums.
    #[inline]
    unsafe fn full_byte_sums(
        lines: *const CacheLine,
        (first, n): (usize, usize),
        x: &[*const Q8Block; MR],
    ) -> BlockSums {
        // SAFETY: indices stay below eight, which a sub-block has; the ISA by this function's
        // contract.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut ints = [quants_of(lines, NEGATIVES); MR];
            for j in first..first + n {
                let quants = quants_of(lines, j);
                let magnitudes = [_mm256_abs_epi8(quants[0]), _mm256_abs_epi8(quants[1])];
                let negative = [negatives(quants[0]), negatives(quants[1])];
                for r in 0..MR {
                    let input = inputs_of(x[r], j);
                    for t in 0..2 {
                        let pairs = _mm256_maddubs_epi16(magnitudes[t], _mm256_xor_si256(input, negative[t]));
                        ints[r][t] = _mm256_add_epi32(ints[r][t], _mm256_madd_epi16(pairs, ones));
                    }
                }
                compute_now!(ints);
            }
            ints
        }
    }
}

/// Mask of the quants below zero.
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it.
#[inline(always)]
unsafe fn negatives(quants: __m256i) -> __m256i {
    // SAFETY: the ISA by this function's contract.
    unsafe { _mm256_cmpgt_epi8(_mm256_setzero_si256(), quants) }
}

/// Index of the line after eight lines of quants and one of scales: for each output, Σ |w| over the
/// negative quants of a sub-block.
const NEGATIVES: usize = 9;

/// Stores the line [`NEGATIVES`] of a sub-block.
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it.
#[inline(always)]
pub(super) unsafe fn store_negatives(quants: &[[__m256i; 2]; 8], to: &mut CacheLine) {
    // SAFETY: a line has room for two vectors; the ISA by this function's contract.
    unsafe {
        let mut pairs = [_mm256_setzero_si256(); 2];
        for quants in quants {
            for t in 0..2 {
                let magnitudes = _mm256_and_si256(_mm256_abs_epi8(quants[t]), negatives(quants[t]));
                // At most 8 · 2 · 128, which fits 16 bits.
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(magnitudes, _mm256_set1_epi8(1)));
            }
        }
        let to: *mut __m256i = to.0.as_mut_ptr().cast();
        for t in 0..2 {
            _mm256_store_si256(to.add(t), _mm256_madd_epi16(pairs[t], _mm256_set1_epi16(1)));
        }
    }
}

crate::isa::isa_fn! { Avx2;
    /// One microkernel block of one tile, with `DEPTH` products of pairs added in 16 bits.
    /// Otherwise as [`multiply_block`](super::microkernel).
    ///
    /// # Safety
    /// The CPU has AVX2. The block is of one tile, and its pointers are valid for the sizes in its
    /// fields.
    pub(super) unsafe fn multiply_block<const KIND: u8, const SPLIT_SCALE: bool, const DEPTH: usize>(
        tile_block: &MicrokernelBlock<'_>,
    ) {
        let halves = 1 + usize::from(SPLIT_SCALE);
        let vectors = 8 / halves;
        // SAFETY: indices stay below the sizes in the block's fields by this function's contract,
        // which also promises the ISA.
        unsafe {
            // A local variable with the alignment of a vector makes the compiler align the stack,
            // so that spilled vectors cross no cache line. It does not align the stack for spills
            // alone: for Q5_K they happened to cross a page, and products took 1.7 times as long
            // (Zen 4).
            // measured: docs/notes/gemv-and-gemm.md "Sums in 16 bits on AVX2"
            let aligned = MaybeUninit::<AlignedVector>::uninit();
            asm!("/* {0} */", in(reg) aligned.as_ptr(), options(readonly, nostack, preserves_flags));
            for sub_block in 0..tile_block.sub_blocks {
                let lines = tile_block.lines.add(sub_block * tile_block.lines_per_sub_block);
                let mut x = *tile_block.x;
                for x in &mut x {
                    *x = x.add(sub_block);
                }
                for next in tile_block.next {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(sub_block).cast());
                }
                // Accumulators are loaded and stored per sub-block: the integer sums of four rows
                // already fill eight of sixteen registers.
                for half in 0..halves {
                    let of_half = (half * vectors, vectors);
                    let ints = match DEPTH {
                        1 => full_byte_sums(lines, of_half, &x),
                        _ => narrow_sums::<DEPTH>(lines, of_half, &x),
                    };
                    for r in 0..MR {
                        let block = &*x[r];
                        let scale = _mm256_set1_ps(block.scale);
                        let bias = if SPLIT_SCALE { block.half_biases[half] } else { block.bias };
                        let bias =
                            _mm256_sra_epi32(_mm256_set1_epi32(bias), _mm_cvtsi32_si128(tile_block.shift as i32));
                        let total = _mm256_set1_ps(if SPLIT_SCALE { block.halves[half] } else { block.total });
                        for t in 0..2 {
                            let sum = tile_block.sums.add(r).cast::<f32>().add(8 * t);
                            let scales = _mm256_load_ps(lines.add(8 + half).cast::<f32>().add(8 * t));
                            let exact =
                                if KIND == CONST_ZERO { _mm256_add_epi32(ints[r][t], bias) } else { ints[r][t] };
                            let terms = _mm256_cvtepi32_ps(exact);
                            let mut sums =
                                _mm256_fmadd_ps(terms, _mm256_mul_ps(scales, scale), _mm256_load_ps(sum));
                            if KIND == AFFINE {
                                let mins = _mm256_load_ps(lines.add(8 + halves + half).cast::<f32>().add(8 * t));
                                sums = _mm256_fnmadd_ps(mins, total, sums);
                            }
                            _mm256_store_ps(sum, sums);
                        }
                    }
                }
            }
        }
    }
}
