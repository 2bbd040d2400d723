//! The dot product of one sub-block of 32 inputs, dequantized in registers.

use super::formats::{Format, Planes, QuantKind};
use super::microkernel::QuantGemm;
use crate::activation::{Q8_BLOCK, Q8Block};
use crate::simd::Simd;
use std::hint::black_box;

/// Adds the terms of a sub-block to the accumulators of `M` input rows: sub-block `S` of unrolled group `g` of block `b`.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The tile at `planes` and each row of `x` have the sub-block.
#[inline(always)]
pub(super) unsafe fn sub_block<L: QuantGemm, F: Format, const M: usize, const S: usize>(
    planes: &Planes,
    b: usize,
    g: usize,
    x: &[*const Q8Block; M],
    sums: &mut [L::F32x16; M],
) {
    // SAFETY: tile and rows have the sub-block, and the CPU the ISA, by this function's contract; a `Q8Block` has 32 quants.
    unsafe {
        let quants = F::quants::<L, S>(planes, b, g);
        let scales = F::scales::<L, S>(planes, b, g);
        let mins = F::mins::<L, S>(planes, b, g, scales);
        for m in 0..M {
            let block = &*x[m].add(b * F::SUB_BLOCKS + g * F::UNROLL + S);
            let mut sum = sums[m];
            if F::SPLIT_SCALE {
                for half in 0..2 {
                    let ints = L::dots::<F, 4>(&quants, half, block.half_biases[half], &block.quants);
                    sum = L::fma(L::to_f32(ints), L::mul(scales[half], L::splat_f32(block.scale)), sum);
                    if F::HAS_MIN {
                        sum = L::fnma(mins[half], L::splat_f32(block.halves[half]), sum);
                    }
                }
            } else {
                let ints = L::dots::<F, 8>(&quants, 0, block.bias, &block.quants);
                sum = L::fma(L::to_f32(ints), L::mul(scales[0], L::splat_f32(block.scale)), sum);
                if F::HAS_MIN {
                    sum = L::fnma(mins[0], L::splat_f32(block.total), sum);
                }
            }
            sums[m] = sum;
        }
    }
}

/// Integer sums of `N` of a sub-block's vectors of quants, the `part`th `N` of them, with the inputs, given −128 · Σ of these inputs: one
/// instruction's worth of products after the other.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn dots<L: Simd, F: Format, const N: usize>(
    quants: &[L::I8x64; 8],
    part: usize,
    bias: i32,
    x: &[i8; Q8_BLOCK],
) -> L::I32x16 {
    // SAFETY: vector j multiplies inputs 4j to 4j + 3, and j is below 8; the ISA by this function's contract.
    unsafe {
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

/// −zero point · Σ inputs, from −128 · Σ inputs. Opaque, else the compiler vectorizes the shifts of many sub-blocks and spills what it unpacks for
/// them.
#[inline(always)]
pub(super) fn zero_point_term(bias: i32, shift: u32) -> i32 {
    black_box(bias >> shift)
}

/// Vectors as arrays. Not `map`, whose closure would not always be inlined and then lack the ISA's instructions.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
pub(super) unsafe fn to_arrays<L: Simd, const N: usize>(sums: &[L::F32x16; N]) -> [[f32; 16]; N] {
    let mut out = [[0.0; 16]; N];
    for (out, sum) in out.iter_mut().zip(sums) {
        // SAFETY: an array has room for sixteen floats; the ISA by this function's contract.
        unsafe { L::store_f32(out.as_mut_ptr(), *sum) };
    }
    out
}
