//! Reductions over sixteen lanes, in the same order on every ISA.

/// Folds sixteen lanes pairwise.
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

/// Sums sixteen lanes pairwise.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: [f32; 16]) -> f32 {
    fold_lanes!(lanes, a, b => a + b)
}

/// A dot product in 16 accumulators, whatever the ISA.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0.0f32; 16];
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let (ac, bc) = (a.chunks_exact(16), b.chunks_exact(16));
    for (s, (x, y)) in acc.iter_mut().zip(ac.remainder().iter().zip(bc.remainder())) {
        *s += x * y;
    }
    for (x, y) in ac.zip(bc) {
        for i in 0..16 {
            acc[i] += x[i] * y[i];
        }
    }
    sum_lanes(acc)
}
