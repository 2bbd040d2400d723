//! Strips: packed weights as bf16, in the order of tiles.
//!
//! Tiles of packed weights have four inputs of an output side by side, a vector of sixteen outputs; the unit wants two inputs of
//! sixteen outputs. A permutation of bytes picks them and widens them to 32 bits, in the order in which two vectors of f32 become one of bf16: four
//! permutations, conversions and multiply-adds and two roundings for 64 weights.
#![allow(unsafe_code, reason = "vector instructions, and addresses that the caller keeps in bounds")]

use super::dot::{K_STEP, TILE_BYTES};
use crate::matmul::formats::{Format, Planes, two};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;
use std::arch::x86_64::*;
use std::ops::Range;

/// Bytes from one step's tile to the next: of each step there are the tiles of two groups of sixteen outputs.
const NEXT: usize = 2 * TILE_BYTES;

/// Which bytes of a vector of four inputs of sixteen outputs become the lowest of each 32 bits: inputs 2·`pair` and 2·`pair` + 1 of the outputs from
/// 8·`half` on.
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

/// Each of eight lanes twice, from lane 0 or 8 on.
static TWICE: [[i32; 16]; 2] = [
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7],
    [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15],
];

crate::isa::isa_fn! { Avx512Bf16;
/// Unpacks `blocks` of one packed tile, to every second tile from `out` on.
///
/// # Safety
/// The processor has AVX-512 with VBMI, VNNI and BF16. The planes belong to a packed tile of the format with more than `blocks.end` − 1
/// blocks, and there is memory for as many steps from `out` on.
pub(super) unsafe fn unpack<F: Format>(planes: &Planes, blocks: Range<usize>, out: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let ahead = blocks.len() * F::QUANT_VECTORS * 64;
        for (i, b) in blocks.enumerate() {
            for g in 0..F::SUBS / F::UNROLL {
                let out = out.add((i * F::SUBS + g * F::UNROLL) * NEXT);
                macro_rules! runs {
                    ($($s:literal)*) => {
                        $(if $s < F::UNROLL {
                            run::<F, $s>(planes, b, g, out.add($s * NEXT));
                        })*
                    };
                }
                runs!(0 1 2 3);
            }
            // what is unpacked next of this tile, while the unit works on this strip
            for line in 0..F::QUANT_VECTORS {
                Avx512::prefetch_far(planes.codes.wrapping_add(ahead + (b * F::QUANT_VECTORS + line) * 64));
            }
        }
    }
}
}

/// One run of 32 inputs: one tile. KvElement = scale · code − min; signed codes are raised by 128, which the min takes back: exactly, since
/// the product of both is rounded once.
///
/// # Safety
/// As for [`unpack`].
#[inline(always)]
unsafe fn run<F: Format, const S: usize>(planes: &Planes, b: usize, g: usize, out: *mut u8) {
    const { assert!(K_STEP == 32, "a run is a step") }
    // SAFETY: the caller's promise.
    unsafe {
        let codes = F::codes::<Avx512, S>(planes, b, g);
        let scales = F::scales::<Avx512, S>(planes, b, g);
        let mins = if F::SIGNED {
            two!(|half| _mm512_mul_ps(scales[half], _mm512_set1_ps(128.0)))
        } else {
            F::mins::<Avx512, S>(planes, b, g, scales)
        };
        let twice = two!(|half| _mm512_loadu_si512(TWICE[half].as_ptr().cast()));
        let picked = two!(|pair| two!(|half| _mm512_loadu_si512(PICKED[pair][half].as_ptr().cast())));
        // of each half of the run, and of each eight outputs
        let scales = two!(|half| two!(|lanes| _mm512_permutexvar_ps(twice[lanes], scales[half])));
        let mins = two!(|half| two!(|lanes| _mm512_permutexvar_ps(twice[lanes], mins[half])));
        for j in 0..8 {
            let bytes =
                if F::SIGNED { _mm512_xor_si512(codes[j], _mm512_set1_epi8(i8::MIN)) } else { codes[j] };
            let part = if F::SPLIT_SCALE { j / 4 } else { 0 };
            for pair in 0..2 {
                macro_rules! eight {
                    ($half:literal) => {{
                        let lowest = 0x1111_1111_1111_1111;
                        let wide = _mm512_maskz_permutexvar_epi8(lowest, picked[pair][$half], bytes);
                        _mm512_fmsub_ps(_mm512_cvtepi32_ps(wide), scales[part][$half], mins[part][$half])
                    }};
                }
                let rounded = _mm512_cvtne2ps_pbh(eight!(1), eight!(0));
                _mm512_storeu_si512(
                    out.add((2 * j + pair) * 64).cast(),
                    std::mem::transmute::<__m512bh, __m512i>(rounded),
                );
            }
        }
    }
}
