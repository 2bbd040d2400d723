//! Integer dot products of a sub-block's quants and inputs.

use super::formats::{QuantFormat, QuantKind};
use crate::activation::Q8_BLOCK;
use crate::simd::Simd;
use std::hint::black_box;

/// Integer dot products of `N` of a sub-block's eight vectors of quants, from vector `part · N` on,
/// with the inputs `x`. `bias` is −128 · Σ of these inputs.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn dots<L: Simd, F: QuantFormat, const N: usize>(
    quants: &[L::I8x64; 8],
    part: usize,
    bias: i32,
    x: &[i8; Q8_BLOCK],
) -> L::I32x16 {
    // SAFETY: vector j multiplies inputs 4j to 4j + 3, and j is below 8; the ISA by this function's
    // contract.
    unsafe {
        // The accumulator starts at −zero point · Σ inputs, so that the zero point costs no
        // instruction per product and no f32 term afterwards: 5 to 10 % of prompts (Zen 5).
        // measured: docs/notes/gemv-and-gemm.md "Registers and accumulators"
        let mut ints = match F::KIND {
            QuantKind::Symmetric => L::init_acc(bias),
            QuantKind::ConstZero(_) if L::FULL_BYTES => L::init_acc(bias),
            QuantKind::ConstZero(_) => L::splat_i32(zero_point_term(bias, F::KIND.shift())),
            QuantKind::Affine => L::zero(),
        };
        for j in part * N..part * N + N {
            let x = x.as_ptr().add(4 * j);
            ints = if F::SIGNED {
                L::dot_biased(ints, L::bias128(quants[j]), x)
            } else {
                L::dot(ints, quants[j], x)
            };
        }
        ints
    }
}

/// −zero point · Σ inputs, from −128 · Σ inputs.
#[inline(always)]
pub(super) fn zero_point_term(bias: i32, shift: u32) -> i32 {
    // Opaque: otherwise the compiler vectorizes the shifts of many sub-blocks, and spills the
    // quants that it unpacks meanwhile.
    black_box(bias >> shift)
}
