//! The products of one sub-block of 32 inputs, unpacked in registers.

use super::formats::{PlaneAddresses, QuantFormat};
use super::microkernel::QuantGemm;
use crate::activation::Q8Block;
use crate::simd::Simd;

/// Adds the terms of sub-block `S` of unrolled group `g` of block `b` to the accumulators of `M`
/// input rows.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The tile at `planes` and each row
/// of `x` have the sub-block.
#[inline(always)]
pub(super) unsafe fn sub_block<L: QuantGemm, F: QuantFormat, const M: usize, const S: usize>(
    planes: &PlaneAddresses,
    b: usize,
    g: usize,
    x: &[*const Q8Block; M],
    sums: &mut [L::F32x16; M],
) {
    // SAFETY: tile and rows have the sub-block, and the CPU the ISA, by this function's contract; a
    // `Q8Block` has 32 quants.
    unsafe {
        let quants = F::quants::<L, S>(planes, b, g);
        let scales = F::scales::<L, S>(planes, b, g);
        let mins = F::mins::<L, S>(planes, b, g, scales);
        for m in 0..M {
            // Products are exact in int32. Scale and min terms are added by one FMA each, in the
            // order of the microkernel, so that the bits do not depend on the batch size.
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

/// Vectors as arrays. Not `map`: its closure is not always inlined, and is then compiled without
/// the ISA's instructions.
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
