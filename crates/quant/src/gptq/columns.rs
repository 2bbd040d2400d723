//! Rounding to levels with f16 scales that the caller stores: for layouts of other libraries, with
//! groups of any length.

use super::factor::HessianFactor;
use super::group::{UnsignedLevels, inverses};
use crate::search::levels::{E2m1Levels, IntegerLevels, QuantLevels};
use crate::search::{Candidates, LANES, clamp, lowest, round, safe_inverse};
use half::f16;

/// Maximum length of a group whose candidates are compared with the error feedback inside it. The
/// time of that is quadratic in the length; in longer groups the columns' errors are only added.
const MAX_SEARCHED: usize = 256;

/// The values of a layout's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredLevels {
    /// E2M1 times a scale.
    E2m1,
    /// (code − 8) times a scale.
    Symmetric,
    /// (code − zero point) times a scale.
    ZeroPoint,
}

/// Scale and zero point of a group of columns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LevelGroup {
    pub scale: f16,
    /// The zero point; 8 for symmetric levels, 0 for E2M1.
    pub zero: u8,
}

/// Rounds one row of weights to codes of four bits, by column, with a scale per group of the
/// factor. If a length disagrees with the factor, nothing is written. A scale beyond f16 becomes
/// infinite, which the caller must refuse.
pub fn round_levels(
    factor: &HessianFactor,
    row: &[f32],
    kind: StoredLevels,
    codes: &mut [u8],
    groups: &mut [LevelGroup],
) {
    let (columns, len) = (factor.columns(), factor.group());
    if row.len() != columns || codes.len() != columns || groups.len() != columns.div_ceil(len) {
        return;
    }
    let mut weights: Vec<f32> = factor.order().iter().map(|column| row[*column as usize]).collect();
    let mut targets = weights.clone();
    for (number, first) in (0..columns).step_by(len).enumerate() {
        let last = (first + len).min(columns);
        let group =
            GroupSpan { factor, first, weights: &weights[first..last], targets: &targets[first..last] };
        let (found, doubled) = match kind {
            StoredLevels::E2m1 => (group.scale::<E2m1Levels>(0.5, 0), 0.5),
            StoredLevels::Symmetric => (group.scale::<IntegerLevels<8>>(1.0, 8), 1.0),
            StoredLevels::ZeroPoint => (group.scale_and_zero(), 1.0),
        };
        groups[number] = found;
        let scale = found.scale.to_f32() * doubled;
        let inverse = safe_inverse(scale);
        let zero = f32::from(found.zero);
        for k in first..last {
            let (level, code) = match kind {
                StoredLevels::E2m1 => {
                    let level = E2m1Levels::nearest(targets[k] * inverse);
                    (level, crate::e2m1::code_of(level))
                }
                _ => {
                    let code = UnsignedLevels::nearest(targets[k] * inverse + zero);
                    (code - zero, code as u8)
                }
            };
            codes[factor.order()[k] as usize] = code;
            // From here on, `weights` holds the error of rounded columns.
            weights[k] -= scale * level;
            let error = weights[k];
            for (target, ratio) in targets[k + 1..].iter_mut().zip(&factor.ratios(k)[1..]) {
                *target += error * ratio;
            }
        }
    }
}

/// The next group to round.
struct GroupSpan<'a> {
    factor: &'a HessianFactor,
    first: usize,
    weights: &'a [f32],
    targets: &'a [f32],
}

impl GroupSpan<'_> {
    /// The f16 scale with the lowest error, for values `unit` · scale · level.
    fn scale<L: QuantLevels>(&self, unit: f32, zero: u8) -> LevelGroup {
        let extreme = self.targets.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
        let (mut best, mut scale) = (f32::INFINITY, f16::ZERO);
        for attempt in 0..3 {
            let mut stored = [f16::ZERO; LANES];
            let mut scales = [0.0; LANES];
            for l in 0..LANES {
                let wanted = match attempt {
                    // Positive: some layouts have scales of either sign, but not every kernel reads
                    // negative ones.
                    0 | 1 => (extreme / L::end(attempt * LANES + l)).abs() / unit,
                    _ => scale.to_f32() * (1.0 + (l as f32 - 7.0) * 0.004),
                };
                stored[l] = f16::from_f32(wanted);
                scales[l] = stored[l].to_f32() * unit;
            }
            let losses = self.losses::<L>(&scales, &[0.0; LANES]);
            let lane = lowest(&losses);
            // The first attempt always counts: with NaN among the targets no loss is below
            // infinity.
            if losses[lane] < best || attempt == 0 {
                (best, scale) = (losses[lane], stored[lane]);
            }
        }
        LevelGroup { scale, zero }
    }

    /// The f16 scale and the zero point with the lowest error.
    fn scale_and_zero(&self) -> LevelGroup {
        let low = self.targets.iter().fold(0.0f32, |a, b| a.min(*b));
        let high = self.targets.iter().fold(0.0f32, |a, b| a.max(*b));
        let (mut best, mut found) = (f32::INFINITY, LevelGroup { scale: f16::ZERO, zero: 0 });
        // Scales that map the range to about fifteen steps, smaller ones that clip it, scales near
        // the best one, and zero points near the best one.
        for attempt in 0..4 {
            let mut stored = [found; LANES];
            let (mut scales, mut offsets) = ([0.0; LANES], [0.0; LANES]);
            for l in 0..LANES {
                let near = l as f32 - 7.0;
                // Divided before subtracting, since the difference of finite numbers may overflow.
                let wanted = match attempt {
                    0 => high / UnsignedLevels::end(l) - low / UnsignedLevels::end(l),
                    1 => (high / 15.0 - low / 15.0) * (0.6 + 0.025 * l as f32),
                    2 => found.scale.to_f32() * (1.0 + near * 0.006),
                    _ => found.scale.to_f32(),
                };
                stored[l].scale = f16::from_f32(wanted);
                let scale = stored[l].scale.to_f32();
                let zero = if attempt < 2 {
                    if scale == 0.0 { 0.0 } else { round(clamp(-low / scale, 0.0, 15.0)) }
                } else {
                    clamp(f32::from(found.zero) + if attempt == 3 { near } else { 0.0 }, 0.0, 15.0)
                };
                stored[l].zero = zero as u8;
                (scales[l], offsets[l]) = (scale, -(zero * scale));
            }
            let losses = self.losses::<UnsignedLevels>(&scales, &offsets);
            let lane = lowest(&losses);
            if losses[lane] < best || attempt == 0 {
                (best, found) = (losses[lane], stored[lane]);
            }
        }
        found
    }

    /// The error of each candidate after rounding the group with it.
    fn losses<L: QuantLevels>(&self, scales: &Candidates, offsets: &Candidates) -> Candidates {
        let len = self.targets.len();
        let (inverse, mut losses) = (inverses(scales), [0.0; LANES]);
        let mut targets: Vec<Candidates> = self.targets.iter().map(|target| [*target; LANES]).collect();
        for i in 0..len {
            let mut errors = [0.0; LANES];
            for l in 0..LANES {
                let target = targets[i][l];
                let value = scales[l] * L::nearest((target - offsets[l]) * inverse[l]) + offsets[l];
                let off = target - value;
                losses[l] += self.factor.costs()[self.first + i] * off * off;
                errors[l] = self.weights[i] - value;
            }
            if len <= MAX_SEARCHED {
                let ratios = &self.factor.ratios(self.first + i)[1..len - i];
                for (targets, ratio) in targets[i + 1..].iter_mut().zip(ratios) {
                    for l in 0..LANES {
                        targets[l] += errors[l] * ratio;
                    }
                }
            }
        }
        losses
    }
}
