//! Search for the scale of formats with levels on both sides of zero.

use super::{Candidates, LANES, REFINEMENTS, clamp, error_weights, lowest, part, round, safe_inverse, total};
use half::f16;

/// The levels of a format: the values of its quants.
pub(crate) trait QuantLevels {
    /// The lowest and the highest level.
    const ENDS: [f32; 2];
    /// The point to which each of 32 candidates maps the extreme weight of a block. If the levels
    /// are not symmetric, half of the points are on either side of zero.
    fn end(candidate: usize) -> f32;
    /// The level nearest to `v`.
    fn nearest(v: f32) -> f32;
}

/// Integers from −`N` to `N` − 1.
pub(crate) struct IntegerLevels<const N: usize>;

impl<const N: usize> QuantLevels for IntegerLevels<N> {
    const ENDS: [f32; 2] = [-(N as f32), N as f32 - 1.0];

    #[inline(always)]
    fn end(candidate: usize) -> f32 {
        // Around either end, in steps of an eighth of a level. Points beyond the end clip the
        // extreme weight.
        let (n, step) = (N as f32, (candidate % LANES) as f32 * 0.125 - 0.9375);
        if candidate < LANES { -(n + step) } else { n - 1.0 + step + 0.5 }
    }

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        round(clamp(v, -(N as f32), N as f32 - 1.0))
    }
}

/// −1, 0 and 1.
pub(crate) struct TernaryLevels;

impl QuantLevels for TernaryLevels {
    const ENDS: [f32; 2] = [-1.0, 1.0];

    #[inline(always)]
    fn end(candidate: usize) -> f32 {
        // Up to 4.825: the extreme of 256 normally distributed weights is about three times the
        // best scale.
        0.95 + 0.125 * candidate as f32
    }

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        round(clamp(v, -1.0, 1.0))
    }
}

/// −1 and 1.
pub(crate) struct SignLevels;

impl QuantLevels for SignLevels {
    const ENDS: [f32; 2] = [-1.0, 1.0];

    #[inline(always)]
    fn end(_candidate: usize) -> f32 {
        // The signs do not depend on the scale, so all candidates give the same fit.
        1.0
    }

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        if v < 0.0 { -1.0 } else { 1.0 }
    }
}

/// −1, 0, 1 and 2.
pub(crate) struct QuarterLevels;

impl QuantLevels for QuarterLevels {
    const ENDS: [f32; 2] = [-1.0, 2.0];

    #[inline(always)]
    fn end(candidate: usize) -> f32 {
        // The extreme of 64 normally distributed weights is nearly twice the value that an end
        // should have.
        let step = (candidate % LANES) as f32 * 0.2;
        if candidate < LANES { -(0.9 + step) } else { 1.6 + step }
    }

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        round(clamp(v, -1.0, 2.0))
    }
}

/// Twice the values of E2M1.
pub(crate) struct E2m1Levels;

impl QuantLevels for E2m1Levels {
    const ENDS: [f32; 2] = [-12.0, 12.0];

    #[inline(always)]
    fn end(candidate: usize) -> f32 {
        12.0 + (candidate as f32 - 15.5) * 0.125
    }

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        use crate::e2m1::DOUBLED;
        let size = v.abs();
        let mut value = 0.0;
        for i in 0..7 {
            let (below, above) = (f32::from(DOUBLED[i]), f32::from(DOUBLED[i + 1]));
            value = if size > (below + above) * 0.5 { above } else { value };
        }
        value.copysign(v)
    }
}

/// The value of the largest magnitude; 0 if a number is NaN or infinite, which leads to a scale of
/// 0.
#[inline(always)]
fn extreme(x: &[f32]) -> f32 {
    let mut best = 0.0f32;
    let mut finite = true;
    for v in x {
        finite &= v.is_finite();
        best = if v.abs() > best.abs() { *v } else { best };
    }
    if finite { best } else { 0.0 }
}

/// The scale of weights. Candidates map the extreme weight to points near the ends of the levels,
/// and the best one is refined.
#[inline(always)]
pub(crate) fn fit<L: QuantLevels, const N: usize>(x: &[f32; N], w: &[f32; N]) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    // This scale remains if all error weights are 0.
    let (mut best, mut scale) = (f32::INFINITY, extreme / L::end(0));
    for attempt in 0..2 + REFINEMENTS {
        let mut scales = [0.0; LANES];
        for l in 0..LANES {
            // Refinement: the best scale itself, and slightly smaller and larger ones.
            let near = scale * (1.0 + (l as f32 - 7.0) * 0.006);
            scales[l] = if attempt < 2 { extreme / L::end(attempt * LANES + l) } else { near };
        }
        // For given quants, the least-squares scale is Σwqx / Σwqq. Compared with zeros it reduces
        // the error by scale · Σwqx.
        let (wqx, wqq) = lane_sums::<L, N>(x, w, &scales);
        let mut losses = [0.0; LANES];
        for l in 0..LANES {
            scales[l] = if wqq[l] > 0.0 { wqx[l] / wqq[l] } else { 0.0 };
            losses[l] = -scales[l] * wqx[l];
        }
        let lane = lowest(&losses);
        if losses[lane] < best && scales[lane] != 0.0 {
            (best, scale) = (losses[lane], scales[lane]);
        }
    }
    scale
}

/// Σ w·q·x and Σ w·q² for the quants of several scales.
#[inline(always)]
fn lane_sums<L: QuantLevels, const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    scales: &Candidates,
) -> (Candidates, Candidates) {
    let mut inverse = [0.0; LANES];
    for l in 0..LANES {
        inverse[l] = if scales[l] == 0.0 { 0.0 } else { 1.0 / scales[l] };
    }
    let (mut wqx, mut wqq) = ([0.0; LANES], [0.0; LANES]);
    for i in 0..N {
        for l in 0..LANES {
            let q = L::nearest(x[i] * inverse[l]);
            let wq = w[i] * q;
            wqx[l] += wq * x[i];
            wqq[l] += wq * q;
        }
    }
    (wqx, wqq)
}

/// Σ w·q·x and Σ w·q² for the quants of one scale; lanes are weights.
#[inline(always)]
fn sums<L: QuantLevels, const N: usize>(x: &[f32; N], w: &[f32; N], scale: f32) -> (f32, f32) {
    let inverse = safe_inverse(scale);
    let (mut wqx, mut wqq) = ([0.0; LANES], [0.0; LANES]);
    for first in (0..N).step_by(LANES) {
        for l in 0..LANES {
            let q = L::nearest(x[first + l] * inverse);
            let wq = w[first + l] * q;
            wqx[l] += wq * x[first + l];
            wqq[l] += wq * q;
        }
    }
    (total(&wqx), total(&wqq))
}

/// Squared errors of weights for several scales.
#[inline(always)]
pub(crate) fn errors<L: QuantLevels, const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    scales: &Candidates,
) -> Candidates {
    let (mut inverse, mut errors) = ([0.0; LANES], [0.0; LANES]);
    for l in 0..LANES {
        inverse[l] = if scales[l] == 0.0 { 0.0 } else { 1.0 / scales[l] };
    }
    for i in 0..N {
        for l in 0..LANES {
            let off = scales[l] * L::nearest(x[i] * inverse[l]) - x[i];
            errors[l] += w[i] * off * off;
        }
    }
    errors
}

/// Squared error of weights for one scale; lanes are weights. For few candidates.
#[inline(always)]
pub(crate) fn error<L: QuantLevels, const N: usize>(x: &[f32; N], w: &[f32; N], scale: f32) -> f32 {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut errors = [0.0; LANES];
    for first in (0..N).step_by(LANES) {
        for l in 0..LANES {
            let off = scale * L::nearest(x[first + l] * inverse) - x[first + l];
            errors[l] += w[first + l] * off * off;
        }
    }
    total(&errors)
}

/// The levels of weights for a scale.
#[inline(always)]
pub(crate) fn nearest<L: QuantLevels, const N: usize>(x: &[f32], scale: f32) -> [f32; N] {
    let inverse = safe_inverse(scale);
    let mut out = [0.0; N];
    for i in 0..N {
        out[i] = L::nearest(x[i] * inverse);
    }
    out
}

/// The f16 scale of a block of `N` weights, and the level of each. Selects the scale with the
/// lowest error among the fit, its adjacent f16 values, and the scales that map the extreme weight
/// to either end.
// The ends recover the exact scale of weights that were dequantized from this format, or trained in
// it: requantizing them then loses nothing.
#[inline(always)]
pub(crate) fn block<L: QuantLevels, const N: usize>(
    x: &[f32],
    importance: Option<&[f32]>,
) -> (f16, [f32; N]) {
    let x = part::<N>(x, 0);
    let mut w = [0.0; N];
    error_weights(&x, importance, &mut w);
    let fit = f16::from_f32(fit::<L, N>(&x, &w));
    let extreme = extreme(&x);
    let mut scales = [0.0; LANES];
    for l in 0..LANES {
        let d = match l {
            // Adjacent bit patterns are adjacent values. A wrapped one is NaN, whose error is never
            // the lowest.
            1 => f16::from_bits(fit.to_bits().wrapping_add(1)),
            2 => f16::from_bits(fit.to_bits().wrapping_sub(1)),
            3 | 4 => f16::from_f32(extreme / L::ENDS[l - 3]),
            _ => fit,
        };
        scales[l] = d.to_f32();
    }
    let d = scales[lowest(&errors::<L, N>(&x, &w, &scales))];
    (f16::from_f32(d), nearest::<L, N>(&x, d))
}

/// A super-block of 256 weights: weight = d · scale\[g\] · level.
pub(crate) struct LevelSuperBlock<const SUB: usize> {
    pub d: f16,
    pub scales: [i8; SUB],
    pub levels: [f32; 256],
}

/// Chooses the stored scale of every sub-block, from −`top` to `top` − 1, near fit / d. Returns the
/// scales, the total error, and the least-squares d for them.
#[inline(always)]
fn choose<L: QuantLevels, const SUB: usize, const N: usize>(
    x: &[f32],
    w: &[f32; 256],
    fits: &[f32; SUB],
    (d, top): (f32, f32),
) -> ([f32; SUB], f32, f32) {
    let (mut stored, mut total) = ([0.0; SUB], 0.0);
    let (mut wqx, mut wqq) = (0.0, 0.0);
    let inverse = safe_inverse(d);
    for g in 0..SUB {
        let (x, w) = (part::<N>(x, g * N), part::<N>(w, g * N));
        let middle = round(clamp(fits[g] * inverse, -top, top - 1.0));
        let (mut candidates, mut scales) = ([0.0; LANES], [0.0; LANES]);
        for l in 0..LANES {
            // Lane 0 is the middle, so that it wins ties.
            let off = if l % 2 == 0 { -((l / 2) as f32) } else { (l / 2 + 1) as f32 };
            candidates[l] = clamp(middle + off, -top, top - 1.0);
            scales[l] = d * candidates[l];
        }
        let errors = errors::<L, N>(&x, &w, &scales);
        let lane = lowest(&errors);
        stored[g] = candidates[lane];
        total += errors[lane];
        let (qx, qq) = sums::<L, N>(&x, &w, scales[lane]);
        wqx += stored[g] * qx;
        wqq += stored[g] * stored[g] * qq;
    }
    (stored, total, if wqq > 0.0 { wqx / wqq } else { d })
}

/// Quantizes 256 weights as `SUB` sub-blocks of `N`.
#[inline(always)]
pub(crate) fn super_block<L: QuantLevels, const SUB: usize, const N: usize>(
    x: &[f32],
    importance: Option<&[f32]>,
    top: f32,
) -> LevelSuperBlock<SUB> {
    let mut w = [0.0; 256];
    error_weights(x, importance, &mut w);
    let mut fits = [0.0; SUB];
    for g in 0..SUB {
        fits[g] = fit::<L, N>(&part::<N>(x, g * N), &part::<N>(&w, g * N));
    }
    let mut best = (f32::INFINITY, f16::ZERO, [0.0; SUB]);
    // The extreme scale becomes −`top`, since there is one more negative level.
    let mut d = f16::from_f32(extreme(&fits) / -top);
    // A refinement may raise the error, since d is rounded to f16: keep the best.
    for _ in 0..=REFINEMENTS {
        let (scales, error, next) = choose::<L, SUB, N>(x, &w, &fits, (d.to_f32(), top));
        if error < best.0 {
            best = (error, d, scales);
        }
        d = f16::from_f32(next);
    }
    let (_, d, scales) = best;
    let mut levels = [0.0; 256];
    for g in 0..SUB {
        let part = nearest::<L, N>(&x[g * N..(g + 1) * N], d.to_f32() * scales[g]);
        levels[g * N..(g + 1) * N].copy_from_slice(&part);
    }
    let mut out = LevelSuperBlock { d, scales: [0; SUB], levels };
    for g in 0..SUB {
        out.scales[g] = scales[g] as i8;
    }
    out
}
