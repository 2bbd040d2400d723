//! The code of AVX2 without VNNI: see `narrow` for what is added in 16 bits.

use super::dots::zero_point_term;
use super::formats::{Format, QuantKind};
use super::narrow::{MOVED_SHIFT, SMALL_ZERO_POINT, depth_of, moves};
use super::stretch::{AFFINE, MR, Stretch};
use crate::activation::Q8_BLOCK;
use std::arch::asm;
use std::arch::x86_64::*;

/// Moves 64 signed quants to [`SMALL_ZERO_POINT`].
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it.
#[inline(always)]
pub(super) unsafe fn move_quants(quants: [__m256i; 2]) -> [__m256i; 2] {
    // SAFETY: register operations of an ISA that the CPU has by this function's contract.
    unsafe {
        let zero_point = _mm256_set1_epi8(SMALL_ZERO_POINT as i8);
        [_mm256_add_epi8(quants[0], zero_point), _mm256_add_epi8(quants[1], zero_point)]
    }
}

/// Integer sums as [`QuantGemm::dots`](super::microkernel::QuantGemm::dots) gives them, of quants that are not full bytes.
///
/// # Safety
/// The CPU has AVX2, and the caller is compiled for it.
#[inline(always)]
pub(super) unsafe fn dots<F: Format, const N: usize>(
    quants: &[[__m256i; 2]; 8],
    part: usize,
    bias: i32,
    x: &[i8; Q8_BLOCK],
) -> [__m256i; 2] {
    // SAFETY: vector j multiplies inputs 4j to 4j + 3, and j is below 8; the ISA by this function's contract.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut ints = match F::KIND {
            QuantKind::Symmetric => [_mm256_set1_epi32(zero_point_term(bias, MOVED_SHIFT)); 2],
            QuantKind::ConstZero(_) => [_mm256_set1_epi32(zero_point_term(bias, F::KIND.shift())); 2],
            QuantKind::Affine => [_mm256_setzero_si256(); 2],
        };
        let depth = const { if depth_of::<F>() < N { depth_of::<F>() } else { N } };
        for first in (part * N..part * N + N).step_by(depth) {
            let mut pairs = [_mm256_setzero_si256(); 2];
            for j in first..first + depth {
                let x = _mm256_set1_epi32(x.as_ptr().add(4 * j).cast::<i32>().read_unaligned());
                let quants = if const { moves::<F>() } { move_quants(quants[j]) } else { quants[j] };
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

crate::isa::isa_fn! { Avx2;
    /// One microkernel block of one tile, `DEPTH` products of pairs added in 16 bits; as
    /// [`multiply_block`](super::microkernel) otherwise.
    ///
    /// # Safety
    /// The CPU has AVX2. The stretch is of one tile, and has what its fields say.
    pub(super) unsafe fn multiply_block<const KIND: u8, const SPLIT_SCALE: bool, const DEPTH: usize>(
        stretch: &Stretch<'_>,
    ) {
        let halves = 1 + usize::from(SPLIT_SCALE);
        let vectors = 8 / halves;
        // SAFETY: indices stay below the sizes that a stretch has by this function's contract, which also promises the ISA.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            for sub_block in 0..stretch.sub_blocks {
                let lines = stretch.lines.add(sub_block * stretch.lines_per_sub_block);
                let mut x = *stretch.x;
                for x in &mut x {
                    *x = x.add(sub_block);
                }
                for next in stretch.next {
                    _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(sub_block).cast());
                }
                for half in 0..halves {
                    let mut ints = [[_mm256_setzero_si256(); 2]; MR];
                    for part in 0..vectors.div_ceil(DEPTH) {
                        let mut pairs = [[_mm256_setzero_si256(); 2]; MR];
                        for i in 0..DEPTH {
                            let j = half * vectors + part * DEPTH + i;
                            let quants: *const __m256i = lines.add(j).cast();
                            let quants = [_mm256_load_si256(quants), _mm256_load_si256(quants.add(1))];
                            for r in 0..MR {
                                let input = (*x[r]).quants.as_ptr().add(4 * j).cast::<i32>().read_unaligned();
                                let input = _mm256_set1_epi32(input);
                                for t in 0..2 {
                                    let products = _mm256_maddubs_epi16(quants[t], input);
                                    pairs[r][t] =
                                        if i == 0 { products } else { _mm256_add_epi16(pairs[r][t], products) };
                                }
                            }
                            // Computes the sums here, before anything else is loaded. Left alone, the compiler regroups the additions, for which it
                            // loads the quants of all products at once, and spills them.
                            for [a, b] in &mut pairs {
                                asm!("/* {0} {1} */", inout(ymm_reg) *a, inout(ymm_reg) *b, options(nostack, preserves_flags));
                            }
                        }
                        for r in 0..MR {
                            for t in 0..2 {
                                let wide = _mm256_madd_epi16(pairs[r][t], ones);
                                ints[r][t] = if part == 0 { wide } else { _mm256_add_epi32(ints[r][t], wide) };
                            }
                        }
                    }
                    for r in 0..MR {
                        let block = &*x[r];
                        let scale = _mm256_set1_ps(block.scale);
                        let bias = if SPLIT_SCALE { block.half_biases[half] } else { block.bias };
                        let bias =
                            _mm256_sra_epi32(_mm256_set1_epi32(bias), _mm_cvtsi32_si128(stretch.shift as i32));
                        let total = _mm256_set1_ps(if SPLIT_SCALE { block.halves[half] } else { block.total });
                        for t in 0..2 {
                            let sum = stretch.sums.add(r).cast::<f32>().add(8 * t);
                            let scales = _mm256_load_ps(lines.add(8 + half).cast::<f32>().add(8 * t));
                            let exact =
                                if KIND == AFFINE { ints[r][t] } else { _mm256_add_epi32(ints[r][t], bias) };
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
