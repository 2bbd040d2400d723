//! Rounding of the columns of one group, for several candidate scales in vector lanes.

use crate::search::levels::QuantLevels;
use crate::search::{Candidates, LANES, clamp, round, safe_inverse};

/// Integers from 0 to 15. A min or a zero point is the offset of a candidate.
pub(crate) struct UnsignedLevels;

impl QuantLevels for UnsignedLevels {
    const ENDS: [f32; 2] = [0.0, 15.0];

    #[inline(always)]
    fn end(candidate: usize) -> f32 {
        // Around 15: the range becomes slightly fewer or more than fifteen steps.
        14.0 + 0.1 * candidate as f32
    }

    #[inline(always)]
    fn nearest(v: f32) -> f32 {
        round(clamp(v, 0.0, 15.0))
    }
}

/// The factor's values within a group, shared by all rows.
pub(crate) struct GroupFactor<const G: usize> {
    /// `[i][k]`: an error at column k times this is added to the target of a later column i.
    pub ratios: [[f32; G]; G],
    pub costs: [f32; G],
}

/// A row's weights of a group, and its targets, adjusted by the errors of earlier groups.
pub(crate) struct GroupTargets<const G: usize> {
    pub weights: [f32; G],
    pub targets: [f32; G],
}

/// A rounded group.
pub(crate) struct RoundedGroup<const G: usize> {
    pub levels: [f32; G],
    /// Weight minus stored value.
    pub errors: [f32; G],
}

#[inline(always)]
pub(crate) fn inverses(scales: &Candidates) -> Candidates {
    let mut inverse = [0.0; LANES];
    for l in 0..LANES {
        inverse[l] = safe_inverse(scales[l]);
    }
    inverse
}

/// The error of each candidate after rounding the group with it: a value is scale · level + offset.
#[inline(always)]
pub(crate) fn losses<L: QuantLevels, const G: usize>(
    factor: &GroupFactor<G>,
    row: &GroupTargets<G>,
    scales: &Candidates,
    offsets: &Candidates,
) -> Candidates {
    let (inverse, mut losses) = (inverses(scales), [0.0; LANES]);
    let mut errors = [[0.0; LANES]; G];
    for i in 0..G {
        let mut target = [row.targets[i]; LANES];
        for k in 0..i {
            let ratio = factor.ratios[i][k];
            for l in 0..LANES {
                target[l] += errors[k][l] * ratio;
            }
        }
        for l in 0..LANES {
            let value = scales[l] * L::nearest((target[l] - offsets[l]) * inverse[l]) + offsets[l];
            let off = target[l] - value;
            losses[l] += factor.costs[i] * off * off;
            // The loss is relative to the target, but the error that is passed on is relative to
            // the weight: see the module doc.
            errors[i][l] = row.weights[i] - value;
        }
    }
    losses
}

/// Rounds a group with one scale and offset.
#[inline(always)]
pub(crate) fn round_group<L: QuantLevels, const G: usize>(
    factor: &GroupFactor<G>,
    row: &GroupTargets<G>,
    (scale, offset): (f32, f32),
) -> RoundedGroup<G> {
    let inverse = safe_inverse(scale);
    let mut out = RoundedGroup { levels: [0.0; G], errors: [0.0; G] };
    for i in 0..G {
        let mut target = row.targets[i];
        for k in 0..i {
            target += out.errors[k] * factor.ratios[i][k];
        }
        out.levels[i] = L::nearest((target - offset) * inverse);
        out.errors[i] = row.weights[i] - (scale * out.levels[i] + offset);
    }
    out
}
