//! Reductions over f32 in the same order on every ISA: 16 accumulators, folded in pairs.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use crate::simd::Simd;

/// Folds sixteen lanes in pairs: lane i with lane i + 8, then + 4, + 2, + 1.
macro_rules! fold_lanes {
    ($lanes:expr, $a:ident, $b:ident => $fold:expr) => {{
        let mut lanes: [f32; 16] = $lanes;
        let mut width = 8;
        while width > 0 {
            for i in 0..width {
                let ($a, $b) = (lanes[i], lanes[i + width]);
                lanes[i] = $fold;
            }
            width /= 2;
        }
        lanes[0]
    }};
}
pub(crate) use fold_lanes;

/// The sum of sixteen lanes.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: [f32; 16]) -> f32 {
    fold_lanes!(lanes, a, b => a + b)
}

/// A dot product with 16 accumulators, over the length of the shorter slice.
#[cfg(test)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (ac, bc) = (a.chunks_exact(16), b.chunks_exact(16));
    for (s, (x, y)) in sums.iter_mut().zip(ac.remainder().iter().zip(bc.remainder())) {
        *s += x * y;
    }
    for (x, y) in ac.zip(bc) {
        for i in 0..16 {
            sums[i] += x[i] * y[i];
        }
    }
    sum_lanes(sums)
}

/// The dot products of each of `R` rows with each of `C` rows, of `len` elements, with the bits of
/// [`dot`]. The `R × C` sums are independent, which hides the latency of an addition, and each
/// loaded vector serves several of them.
///
/// # Safety
/// As for [`Simd`]. Each address has `len` f32, at any alignment.
#[inline(always)]
pub(crate) unsafe fn dots<L: Simd, const R: usize, const C: usize>(
    a: [*const f32; R],
    b: [*const f32; C],
    len: usize,
) -> [[f32; C]; R] {
    const LANES: usize = 16;
    let whole = len - len % LANES;
    let mut out = [[0.0; C]; R];
    // SAFETY: all offsets are below `len`; the ISA by this function's contract.
    unsafe {
        let mut sums = [[L::splat_f32(0.0); C]; R];
        // The tail goes first, as the initial value of the accumulators: a masked load at the end
        // is not available on every ISA, and `dot` adds in the same order.
        if whole < len {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    let mut lanes = [0.0f32; LANES];
                    for (lane, at) in lanes.iter_mut().zip(whole..len) {
                        *lane += a[r].add(at).read_unaligned() * b[c].add(at).read_unaligned();
                    }
                    *sum = L::load_f32(lanes.as_ptr());
                }
            }
        }
        let mut at = 0;
        while at < whole {
            let mut right = [L::splat_f32(0.0); C];
            for c in 0..C {
                right[c] = L::load_f32(b[c].add(at));
            }
            for r in 0..R {
                let left = L::load_f32(a[r].add(at));
                for c in 0..C {
                    // Not an FMA: the portable tier has none, and the bits must be the same on
                    // every ISA.
                    sums[r][c] = L::add(sums[r][c], L::mul(left, right[c]));
                }
            }
            at += LANES;
        }
        for r in 0..R {
            for c in 0..C {
                out[r][c] = sum_lanes(L::store(sums[r][c]));
            }
        }
    }
    out
}
