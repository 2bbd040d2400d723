//! Sums over one group of inputs.

use super::formats::FloatFormat;
use super::tile::{FloatMatrix, FloatTile};
use crate::simd::Simd;
use latent_quant::tiles::ROWS;
use std::ops::Range;

/// Unpacks a group of tiles to f32: for each input, sixteen weights of each tile.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The tiles have the group, and
/// `out` has room for it.
#[inline(always)]
pub(super) unsafe fn unpack<L: Simd, F: FloatFormat, const V: usize>(
    matrix: &FloatMatrix<'_, '_>,
    tiles: &[FloatTile<'_>; V],
    group: &Range<usize>,
    out: &mut [f32],
) {
    for at in group.clone().step_by(F::INPUTS) {
        for v in 0..V {
            // The last vector may have fewer inputs; the padding is not stored.
            // SAFETY: tiles are padded to whole vectors, and `out` has room for the group; the ISA
            // by this function's contract.
            unsafe {
                let quants = tiles[v].quants.add(at / F::INPUTS * 64);
                L::prefetch_far(quants.wrapping_add(V * matrix.layout.tile_bytes()));
                let weights = F::load::<L>(quants);
                for k in 0..F::INPUTS.min(group.end - at) {
                    let to = out.as_mut_ptr().add(((at - group.start + k) * V + v) * ROWS);
                    L::store_f32(to, weights[k]);
                }
            }
        }
    }
}

/// Sums over an unpacked group of `len` inputs, for `R` packed input rows.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. There are `len` inputs of `V`
/// tiles at `unpacked`, and of `R` rows at `x`.
#[inline(always)]
pub(super) unsafe fn unpacked_group<L: Simd, const R: usize, const V: usize>(
    unpacked: *const f32,
    x: *const f32,
    len: usize,
) -> [[L::F32x16; R]; V] {
    // SAFETY: `k` stays below `len`, as do the reads of this function's contract, which also
    // promises the ISA.
    unsafe {
        let mut sums = [[L::splat_f32(0.0); R]; V];
        for k in 0..len {
            let mut weights = [[L::splat_f32(0.0)]; V];
            for v in 0..V {
                weights[v][0] = L::load_f32(unpacked.add((k * V + v) * ROWS));
            }
            // The same multiply-adds in the same order as in `packed_group`, so the bits are the
            // same.
            k_step::<L, 1, R, V>(&weights, 0, x.add(k * R), &mut sums);
        }
        sums
    }
}

/// Sums over a group that is unpacked in registers, for `R` packed input rows. Prefetches the same
/// group of the next tiles.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. The tiles have the group, and
/// there are as many inputs of `R` rows at `x`.
#[inline(always)]
pub(super) unsafe fn packed_group<L: Simd, F: FloatFormat, const R: usize, const V: usize>(
    matrix: &FloatMatrix<'_, '_>,
    tiles: &[FloatTile<'_>; V],
    x: *const f32,
    group: &Range<usize>,
) -> [[L::F32x16; R]; V] {
    let next = V * matrix.layout.tile_bytes();
    // SAFETY: tiles are padded to whole vectors, and only inputs of the group are read from `x`;
    // the ISA by this function's contract.
    unsafe {
        let mut sums = [[L::splat_f32(0.0); R]; V];
        macro_rules! vector {
            ($at:expr, $count:expr) => {{
                let at: usize = $at;
                let mut weights = [[L::splat_f32(0.0); 4]; V];
                for v in 0..V {
                    let quants = tiles[v].quants.add(at / F::INPUTS * 64);
                    L::prefetch_far(quants.wrapping_add(next));
                    weights[v] = F::load::<L>(quants);
                }
                for k in 0..$count {
                    k_step::<L, 4, R, V>(&weights, k, x.add((at - group.start + k) * R), &mut sums);
                }
            }};
        }
        // The last vector may have fewer inputs. A loop with a constant count is unrolled, one with
        // a variable count is not.
        let whole = group.start + group.len() / F::INPUTS * F::INPUTS;
        let mut at = group.start;
        while at < whole {
            vector!(at, F::INPUTS);
            at += F::INPUTS;
        }
        if whole < group.end {
            vector!(whole, group.end - whole);
        }
        sums
    }
}

/// One k-step: adds weight × input for input `k` of a vector.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it. There are `R` floats at `x`.
#[inline(always)]
unsafe fn k_step<L: Simd, const K: usize, const R: usize, const V: usize>(
    weights: &[[L::F32x16; K]; V],
    k: usize,
    x: *const f32,
    sums: &mut [[L::F32x16; R]; V],
) {
    for r in 0..R {
        // SAFETY: `r` is below the `R` floats at `x`; the ISA by this function's contract.
        unsafe {
            let x = L::splat_f32(*x.add(r));
            for v in 0..V {
                sums[v][r] = L::mul_add_relaxed(weights[v][k], x, sums[v][r]);
            }
        }
    }
}
