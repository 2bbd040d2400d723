//! Search for scale and min of formats with levels 0, 1, 2, …

use super::{
    Candidates, LANES, REFINEMENTS, clamp, error_weights, importance_at, lowest, part, round, safe_inverse,
    total,
};
use half::f16;

/// Sums over a sub-block for several choices of quants, one per lane: error weight (w), quant (q)
/// and number (t).
struct AffineSums {
    w: f32,
    wt: f32,
    wq: Candidates,
    wqq: Candidates,
    wqt: Candidates,
}

/// Least-squares fits, one per lane. The loss is the squared error of a fit minus that of zeros.
struct AffineFits {
    scale: Candidates,
    offset: Candidates,
    loss: Candidates,
}

impl AffineSums {
    /// Fits numbers to their quants: t ≈ scale · q + offset, with an offset of at most `highest`.
    /// The numbers are relative to the lowest one, so that no large sums cancel.
    #[inline(always)]
    fn solve(&self, highest: f32) -> AffineFits {
        let mut fits = AffineFits { scale: [0.0; LANES], offset: [0.0; LANES], loss: [0.0; LANES] };
        let (w, wt) = (self.w, self.wt);
        for l in 0..LANES {
            let (wq, wqq, wqt) = (self.wq[l], self.wqq[l], self.wqt[l]);
            let determinant = w * wqq - wq * wq;
            // Equal quants leave scale and offset undetermined, but rounding rarely makes the
            // determinant exactly zero: hence the relative bound.
            let inverse = if determinant > 1e-4 * w * wqq { 1.0 / determinant } else { 0.0 };
            let free = (wqq * wt - wq * wqt) * inverse;
            // If the unconstrained offset is out of range, it is on the bound, and the scale is
            // that of a fit with this offset.
            let offset = if free > highest { highest } else { free };
            let bound = if wqq > 0.0 { (wqt - offset * wq) / wqq } else { 0.0 };
            let scale = if free > highest { bound } else { (w * wqt - wq * wt) * inverse };
            let loss = scale * (scale * wqq - 2.0 * wqt) + offset * (offset * w + 2.0 * (scale * wq - wt));
            fits.scale[l] = scale;
            fits.offset[l] = offset;
            fits.loss[l] = if scale > 0.0 { loss } else { f32::INFINITY };
        }
        fits
    }
}

/// Scale and offset of a sub-block for quants from 0 to `levels`. With `below_zero` the offset is 0
/// or less, since K-quants store it as an unsigned min.
#[inline(always)]
pub(crate) fn fit<const N: usize>(x: &[f32; N], w: &[f32; N], levels: f32, below_zero: bool) -> (f32, f32) {
    let (low, high) = range(x, if below_zero { 0.0 } else { x[0] });
    // Equal numbers, NaN, or a range that overflows.
    if !(high > low && (high - low).is_finite()) {
        return (0.0, if low.is_finite() { low } else { 0.0 });
    }
    let mut t = [0.0; N];
    for i in 0..N {
        t[i] = x[i] - low;
    }
    let highest = if below_zero { -low } else { f32::INFINITY };
    let (mut scales, mut offsets) = ([0.0; LANES], [0.0; LANES]);
    let (mut best, mut scale, mut offset) = (f32::INFINITY, (high - low) / levels, 0.0);
    // Two rounds of candidates, from a scale that clips the highest numbers to one that leaves the
    // highest level empty. Then the scales around the best one.
    for attempt in 0..2 + REFINEMENTS {
        for l in 0..LANES {
            let step = l as f32;
            let candidate = levels + 0.06 * step - if attempt == 0 { 0.96 } else { 0.0 };
            // Refinement: the best scale itself, and slightly smaller and larger ones.
            let near = scale * (1.0 + (step - 7.0) * 0.006);
            scales[l] = if attempt < 2 { (high - low) / candidate } else { near };
            offsets[l] = if attempt < 2 { 0.0 } else { offset };
        }
        let fits = sums(&t, w, levels, &scales, &offsets).solve(highest);
        let lane = lowest(&fits.loss);
        if fits.loss[lane] < best {
            (best, scale, offset) = (fits.loss[lane], fits.scale[lane], fits.offset[lane]);
        }
    }
    (scale, offset + low)
}

/// The minimum and the maximum of some numbers and `start`.
#[inline(always)]
fn range(x: &[f32], start: f32) -> (f32, f32) {
    let (mut lows, mut highs) = ([start; LANES], [start; LANES]);
    for x in x.chunks_exact(LANES) {
        for l in 0..LANES {
            lows[l] = if x[l] < lows[l] { x[l] } else { lows[l] };
            highs[l] = if x[l] > highs[l] { x[l] } else { highs[l] };
        }
    }
    let (mut low, mut high) = (start, start);
    for l in 0..LANES {
        low = if lows[l] < low { lows[l] } else { low };
        high = if highs[l] > high { highs[l] } else { high };
    }
    (low, high)
}

/// Sums for the quants of several scales and offsets.
#[inline(always)]
fn sums<const N: usize>(
    t: &[f32; N],
    w: &[f32; N],
    levels: f32,
    scales: &Candidates,
    offsets: &Candidates,
) -> AffineSums {
    let mut sums = AffineSums { w: 0.0, wt: 0.0, wq: [0.0; LANES], wqq: [0.0; LANES], wqt: [0.0; LANES] };
    let (mut inverse, mut shift) = ([0.0; LANES], [0.0; LANES]);
    for l in 0..LANES {
        inverse[l] = if scales[l] > 0.0 { 1.0 / scales[l] } else { 0.0 };
        shift[l] = offsets[l] * inverse[l];
    }
    for i in 0..N {
        sums.w += w[i];
        sums.wt += w[i] * t[i];
        for l in 0..LANES {
            let q = round(clamp(t[i] * inverse[l] - shift[l], 0.0, levels));
            let wq = w[i] * q;
            sums.wq[l] += wq;
            sums.wqq[l] += wq * q;
            sums.wqt[l] += wq * t[i];
        }
    }
    sums
}

/// A super-block of 256 weights: weight = d · scale\[g\] · quant − dmin · min\[g\].
pub(crate) struct AffineSuperBlock<const SUB: usize> {
    pub d: f16,
    pub dmin: f16,
    pub scales: [u8; SUB],
    pub mins: [u8; SUB],
    pub quants: [u8; 256],
}

/// Squared errors of a sub-block for pairs of scale and min.
#[inline(always)]
fn errors<const N: usize>(
    x: &[f32; N],
    w: &[f32; N],
    levels: f32,
    scales: &Candidates,
    mins: &Candidates,
) -> Candidates {
    let (mut inverse, mut errors) = ([0.0; LANES], [0.0; LANES]);
    for l in 0..LANES {
        inverse[l] = if scales[l] > 0.0 { 1.0 / scales[l] } else { 0.0 };
    }
    for i in 0..N {
        for l in 0..LANES {
            let q = round(clamp((x[i] + mins[l]) * inverse[l], 0.0, levels));
            let off = scales[l] * q - mins[l] - x[i];
            errors[l] += w[i] * off * off;
        }
    }
    errors
}

/// The search over a super-block, with its state.
struct AffineSearch<'a, const SUB: usize, const N: usize> {
    x: &'a [f32],
    w: [f32; 256],
    levels: f32,
    /// Highest scale and min as stored.
    top: f32,
    scales: [f32; SUB],
    mins: [f32; SUB],
}

impl<const SUB: usize, const N: usize> AffineSearch<'_, SUB, N> {
    /// Chooses the stored scale and min of every sub-block for super-block scales, among the
    /// neighbors of the current ones. Returns the total error.
    #[inline(always)]
    fn choose(&mut self, d: f32, dmin: f32) -> f32 {
        let mut total = 0.0;
        for g in 0..SUB {
            let (x, w) = (part::<N>(self.x, g * N), part::<N>(&self.w, g * N));
            let (mut scales, mut mins) = ([0.0; LANES], [0.0; LANES]);
            let (mut stored_scales, mut stored_mins) = ([0.0; LANES], [0.0; LANES]);
            // Lane 0 is the current pair, so that it wins ties. Lanes 1 to 15 are three scales by
            // five mins.
            for l in 0..LANES {
                let (up, right) = if l == 0 { (0, 0) } else { ((l - 1) / 5, (l - 1) % 5) };
                let (up, right) = if l == 0 { (0.0, 0.0) } else { (up as f32 - 1.0, right as f32 - 2.0) };
                stored_scales[l] = clamp(self.scales[g] + up, 0.0, self.top);
                stored_mins[l] = clamp(self.mins[g] + right, 0.0, self.top);
                scales[l] = d * stored_scales[l];
                mins[l] = dmin * stored_mins[l];
            }
            let errors = errors(&x, &w, self.levels, &scales, &mins);
            let lane = lowest(&errors);
            total += errors[lane];
            (self.scales[g], self.mins[g]) = (stored_scales[lane], stored_mins[lane]);
        }
        total
    }

    /// The least-squares super-block scales for the quants of the current scales. If that fit is
    /// singular or negative, only d is fitted.
    #[inline(always)]
    fn refit(&self, d: f32, dmin: f32) -> (f32, f32) {
        let mut lanes = [[0.0; LANES]; 5];
        for g in 0..SUB {
            let (x, w) = (part::<N>(self.x, g * N), part::<N>(&self.w, g * N));
            let (scale, min) = (self.scales[g], self.mins[g]);
            let inverse = safe_inverse(d * scale);
            for first in (0..N).step_by(LANES) {
                for l in 0..LANES {
                    let (x, w) = (x[first + l], w[first + l]);
                    let q = scale * round(clamp((x + dmin * min) * inverse, 0.0, self.levels));
                    let (wq, wm) = (w * q, w * min);
                    lanes[0][l] += wq * q;
                    lanes[1][l] += wq * min;
                    lanes[2][l] += wm * min;
                    lanes[3][l] += wq * x;
                    lanes[4][l] += wm * x;
                }
            }
        }
        let (qq, qm, mm) = (total(&lanes[0]), total(&lanes[1]), total(&lanes[2]));
        let (xq, xm) = (total(&lanes[3]), total(&lanes[4]));
        let determinant = qq * mm - qm * qm;
        // A smaller determinant means that quants and mins are nearly proportional. The solution
        // would then magnify rounding errors.
        if determinant > 1e-4 * qq * mm {
            let (new, new_min) = ((xq * mm - xm * qm) / determinant, (xq * qm - xm * qq) / determinant);
            if new > 0.0 && new_min >= 0.0 {
                return (new, new_min);
            }
        }
        if qq > 0.0 { ((xq + dmin * qm) / qq, dmin) } else { (d, dmin) }
    }
}

/// Quantizes 256 weights as `SUB` sub-blocks of `N`.
#[inline(always)]
pub(crate) fn super_block<const SUB: usize, const N: usize>(
    x: &[f32],
    importance: Option<&[f32]>,
    levels: f32,
    top: f32,
) -> AffineSuperBlock<SUB> {
    let mut w = [0.0; 256];
    error_weights(x, importance, &mut w);
    super_block_by::<SUB, N>(x, w, levels, top)
}

/// Quantizes 256 weights as `SUB` sub-blocks of `N`, whose squared errors are weighted by `w`.
#[inline(always)]
pub(crate) fn super_block_by<const SUB: usize, const N: usize>(
    x: &[f32],
    w: [f32; 256],
    levels: f32,
    top: f32,
) -> AffineSuperBlock<SUB> {
    let mut search = AffineSearch::<SUB, N> { x, w, levels, top, scales: [0.0; SUB], mins: [0.0; SUB] };
    let (mut scales, mut mins) = ([0.0; SUB], [0.0; SUB]);
    let (mut max_scale, mut max_min) = (0.0f32, 0.0f32);
    for g in 0..SUB {
        let (scale, offset) = fit(&part::<N>(x, g * N), &part::<N>(&search.w, g * N), levels, true);
        (scales[g], mins[g]) = (scale, -offset);
        max_scale = max_scale.max(scales[g]);
        max_min = max_min.max(mins[g]);
    }
    let mut best = (f32::INFINITY, f16::ZERO, f16::ZERO, [0.0; SUB], [0.0; SUB]);
    // The largest scale and min become the largest stored ones.
    let (mut d, mut dmin) = (f16::from_f32(max_scale / top), f16::from_f32(max_min / top));
    for g in 0..SUB {
        search.scales[g] = round(clamp(scales[g] * safe_inverse(d.to_f32()), 0.0, top));
        search.mins[g] = round(clamp(mins[g] * safe_inverse(dmin.to_f32()), 0.0, top));
    }
    // A refinement may raise the error, since d and dmin are rounded to f16: keep the best.
    for _ in 0..=REFINEMENTS {
        let error = search.choose(d.to_f32(), dmin.to_f32());
        if error < best.0 {
            best = (error, d, dmin, search.scales, search.mins);
        }
        let (new, new_min) = search.refit(d.to_f32(), dmin.to_f32());
        (d, dmin) = (f16::from_f32(new), f16::from_f32(new_min));
    }
    let (_, d, dmin, scales, mins) = best;
    // Quants are rounded with the scales as stored, as they will be decoded.
    let mut quants = [0; 256];
    for g in 0..SUB {
        let (scale, min) = (d.to_f32() * scales[g], dmin.to_f32() * mins[g]);
        let inverse = safe_inverse(scale);
        for i in g * N..(g + 1) * N {
            quants[i] = round(clamp((x[i] + min) * inverse, 0.0, levels)) as u8;
        }
    }
    let mut out = AffineSuperBlock { d, dmin, scales: [0; SUB], mins: [0; SUB], quants };
    for g in 0..SUB {
        (out.scales[g], out.mins[g]) = (scales[g] as u8, mins[g] as u8);
    }
    out
}

/// Quantizes 32 weights with an f16 scale and offset: weight = d · quant + m.
#[inline(always)]
pub(crate) fn block(x: &[f32], importance: Option<&[f32]>, levels: f32) -> (f16, f16, [u8; 32]) {
    let x = part::<32>(x, 0);
    let mut w = [0.0; 32];
    error_weights(&x, importance_at(importance, 0, 32), &mut w);
    let (scale, offset) = fit(&x, &w, levels, false);
    let (d, m) = (f16::from_f32(scale), f16::from_f32(offset));
    // Quants are rounded with the scale and offset as stored.
    let (scale, offset) = (d.to_f32(), m.to_f32());
    let inverse = safe_inverse(scale);
    let mut quants = [0; 32];
    for i in 0..32 {
        quants[i] = round(clamp((x[i] - offset) * inverse, 0.0, levels)) as u8;
    }
    (d, m, quants)
}
