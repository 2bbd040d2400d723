//! Dequantization of weight tiles to bf16, in the layout of AMX tiles.
//!
//! A vector of a weight tile has four inputs of each of sixteen outputs; a row of an AMX tile has
//! two inputs of each of sixteen outputs. A byte permutation selects these and widens them to 32
//! bits, in the order in which two f32 vectors are converted to one of bf16. 64 weights take four
//! permutations, conversions and FMAs, and two roundings.
#![allow(unsafe_code, reason = "vector instructions, and addresses that the caller keeps in bounds")]

use crate::bf16::dot::{K_STEP, TILE_BYTES};
use crate::isa::isa_fn;
use crate::matmul::quantized::formats::{PlaneAddresses, QuantFormat, two};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes from one k-step to the next: a k-step has the tiles of two groups of sixteen outputs.
const NEXT: usize = 2 * TILE_BYTES;

/// Source byte of each 32-bit lane: inputs 2·`pair` and 2·`pair` + 1 of the eight outputs from
/// 8·`half` on, out of a vector of four inputs of sixteen outputs.
const fn picked(pair: i32, half: i32) -> [i32; 16] {
    let mut indices = [0; 16];
    let mut lane = 0;
    while lane < 16 {
        indices[lane as usize] = 4 * (8 * half + lane / 2) + 2 * pair + lane % 2;
        lane += 1;
    }
    indices
}

static PICKED: [[[i32; 16]; 2]; 2] = [[picked(0, 0), picked(0, 1)], [picked(1, 0), picked(1, 1)]];

/// Eight lanes, from lane 0 or 8 on, each twice.
static TWICE: [[i32; 16]; 2] = [
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7],
    [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15],
];

isa_fn! { Avx512Bf16;
/// Dequantizes `blocks` of one weight tile, to every second AMX tile from `out` on.
///
/// # Safety
/// The CPU has [`Avx512Bf16`](crate::isa::Avx512Bf16). The planes are those of a tile of the format
/// with at least `blocks.end` blocks, and there is memory for their k-steps from `out` on.
pub(super) unsafe fn dequantize<F: QuantFormat>(planes: &PlaneAddresses, blocks: Range<usize>, out: *mut u8) {
    // SAFETY: tile and memory have the blocks, and the CPU the ISA, by this function's contract; a
    // prefetch never faults.
    unsafe {
        let ahead = blocks.len() * F::QUANT_VECTORS * 64;
        for (i, b) in blocks.enumerate() {
            for g in 0..F::SUB_BLOCKS / F::UNROLL {
                let out = out.add((i * F::SUB_BLOCKS + g * F::UNROLL) * NEXT);
                macro_rules! sub_blocks {
                    ($($s:literal)*) => {
                        $(if $s < F::UNROLL {
                            sub_block::<F, $s>(planes, b, g, out.add($s * NEXT));
                        })*
                    };
                }
                sub_blocks!(0 1 2 3);
            }
            // The next block of inputs of this tile is dequantized after this one is multiplied. It
            // is prefetched to L2 meanwhile.
            for line in 0..F::QUANT_VECTORS {
                Avx512::prefetch_far(planes.quants.wrapping_add(ahead + (b * F::QUANT_VECTORS + line) * 64));
            }
        }
    }
}
}

/// One sub-block, which is one k-step: weight = scale · quant − min.
///
/// # Safety
/// As for [`dequantize`], of sub-block `g · UNROLL + S` of block `b`.
#[inline(always)]
unsafe fn sub_block<F: QuantFormat, const S: usize>(
    planes: &PlaneAddresses,
    b: usize,
    g: usize,
    out: *mut u8,
) {
    const { assert!(K_STEP == 32, "a sub-block is a k-step") }
    // SAFETY: the tile has the sub-block and `out` room for a k-step by this function's contract.
    unsafe {
        let quants = F::quants::<Avx512, S>(planes, b, g);
        let scales = F::scales::<Avx512, S>(planes, b, g);
        // The permutation zero-extends bytes, so signed quants are biased by 128. A min of 128 ·
        // scale undoes that exactly: the power of two does not round, and the FMA rounds once.
        let mins = if F::SIGNED {
            two!(|half| _mm512_mul_ps(scales[half], _mm512_set1_ps(128.0)))
        } else {
            F::mins::<Avx512, S>(planes, b, g, scales)
        };
        let twice = two!(|half| _mm512_loadu_si512(TWICE[half].as_ptr().cast()));
        let picked = two!(|pair| two!(|half| _mm512_loadu_si512(PICKED[pair][half].as_ptr().cast())));
        // Two lanes per output, for its pair of inputs: per half of the sub-block, and per eight
        // outputs.
        let scales = two!(|half| two!(|lanes| _mm512_permutexvar_ps(twice[lanes], scales[half])));
        let mins = two!(|half| two!(|lanes| _mm512_permutexvar_ps(twice[lanes], mins[half])));
        for j in 0..8 {
            let bytes =
                if F::SIGNED { _mm512_xor_si512(quants[j], _mm512_set1_epi8(i8::MIN)) } else { quants[j] };
            let part = if F::SPLIT_SCALE { j / 4 } else { 0 };
            for pair in 0..2 {
                macro_rules! eight {
                    ($half:literal) => {{
                        // Keeps the lowest byte of each 32-bit lane.
                        let lowest = 0x1111_1111_1111_1111;
                        let wide = _mm512_maskz_permutexvar_epi8(lowest, picked[pair][$half], bytes);
                        _mm512_fmsub_ps(_mm512_cvtepi32_ps(wide), scales[part][$half], mins[part][$half])
                    }};
                }
                // The second operand becomes the lower half.
                let rounded = _mm512_cvtne2ps_pbh(eight!(1), eight!(0));
                _mm512_storeu_si512(
                    out.add((2 * j + pair) * 64).cast(),
                    std::mem::transmute::<__m512bh, __m512i>(rounded),
                );
            }
        }
    }
}
