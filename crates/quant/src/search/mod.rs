//! Search for scales, shared by the encoders: weighted least squares over several candidates in
//! vector lanes.
//!
//! * [`affine`]: evenly spaced levels with a min: Q2_K, Q4_K, Q5_K, Q4_1, Q5_1.
//! * [`levels`]: levels on both sides of zero, evenly spaced or not: Q3_K, Q6_K, Q4_0, Q5_0, IQ4,
//!   MXFP4, NVFP4, TQ.
//! * [`grid`]: codebooks: IQ2 and IQ3. [`shifted_grid`]: IQ1.
//!
//! A lane is a candidate, and the loop over lanes is inside the loop over weights. Sums are in the
//! order of the weights, and no sum runs across lanes, so every ISA gives the same bits. Functions
//! are inlined into the encoders, which callers compile for their ISA.

pub(crate) mod affine;
pub(crate) mod grid;
pub(crate) mod levels;
pub(crate) mod shifted_grid;

/// Candidates per pass: one AVX-512 register.
pub(crate) const LANES: usize = 16;

pub(crate) type Candidates = [f32; LANES];

/// Number of refinements of a fit: quants for the scale, then the scale for the quants.
pub(crate) const REFINEMENTS: usize = 1;

/// The integer nearest to `v`, ties to even, for |v| < 2²².
#[inline(always)]
pub(crate) fn round(v: f32) -> f32 {
    // 1.5 · 2^23: the sum has no fraction bits, so the addition rounds. `round_ties_even` is a call
    // on ISAs without a rounding instruction, and loops over it do not vectorize.
    const MAGIC: f32 = 12_582_912.0;
    (v + MAGIC) - MAGIC
}

/// `v` between `low` and `high`; `low` for NaN.
#[inline(always)]
pub(crate) fn clamp(v: f32, low: f32, high: f32) -> f32 {
    // With these operands, the comparisons are one `maxps` and one `minps`. `f32::clamp` would keep
    // NaN.
    let v = if v > low { v } else { low };
    if v < high { v } else { high }
}

/// The weight of an error at each element of a block: importance · √(σ² + x²). Large elements have
/// a larger weight, since they contribute more to dot products. σ², the mean square of the block,
/// gives small elements some weight too.
#[inline(always)]
pub(crate) fn error_weights(x: &[f32], importance: Option<&[f32]>, out: &mut [f32]) {
    // In lanes, folded in a fixed order, so that the mean has the same bits on every ISA.
    let mut squares = [0.0; LANES];
    for x in x.chunks_exact(LANES) {
        for l in 0..LANES {
            squares[l] += x[l] * x[l];
        }
    }
    let mean = total(&squares) / x.len() as f32;
    for (out, x) in out.iter_mut().zip(x) {
        *out = (mean + x * x).sqrt();
    }
    for (out, importance) in out.iter_mut().zip(importance.unwrap_or_default()) {
        *out *= importance;
    }
}

/// The importance of a block of `len` weights at `at`.
#[inline(always)]
pub(crate) fn importance_at(importance: Option<&[f32]>, at: usize, len: usize) -> Option<&[f32]> {
    importance.map(|all| &all[at..at + len])
}

/// `N` weights from an offset.
#[inline(always)]
pub(crate) fn part<const N: usize>(x: &[f32], at: usize) -> [f32; N] {
    let mut out = [0.0; N];
    out.copy_from_slice(&x[at..at + N]);
    out
}

/// The lane of the lowest value, the first one on a tie; lane 0 if all are NaN.
#[inline(always)]
pub(crate) fn lowest(errors: &Candidates) -> usize {
    let mut best = (f32::INFINITY, 0);
    for (lane, error) in errors.iter().enumerate() {
        if *error < best.0 {
            best = (*error, lane);
        }
    }
    best.1
}

/// The largest magnitude; NaN is skipped.
#[inline(always)]
pub(crate) fn largest<const N: usize>(x: &[f32; N]) -> f32 {
    let mut lanes = [0.0; LANES];
    for first in (0..N).step_by(LANES) {
        for l in 0..LANES {
            let size = x[first + l].abs();
            lanes[l] = if size > lanes[l] { size } else { lanes[l] };
        }
    }
    lanes.iter().fold(0.0, |a, b| if *b > a { *b } else { a })
}

/// The sum of all lanes.
#[inline(always)]
pub(crate) fn total(lanes: &Candidates) -> f32 {
    let mut sums = *lanes;
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            sums[l] += sums[l + half];
        }
    }
    sums[0]
}

/// 1 / d, or 0 for a scale that is zero, infinite or NaN, so that quants stay defined.
#[inline(always)]
pub(crate) fn safe_inverse(d: f32) -> f32 {
    if d == 0.0 || !d.is_finite() { 0.0 } else { 1.0 / d }
}
