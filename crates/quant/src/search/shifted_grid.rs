//! Search in the codebook of IQ1, whose rows of −1, 0 and 1 are shifted up or down by an eighth.

use super::{LANES, REFINEMENTS, clamp, error_weights, part, round, safe_inverse};
use half::f16;

/// The shift of every grid value.
pub const DELTA: f32 = 0.125;

/// Rows of the codebook.
const ROWS: usize = crate::grids::IQ1.len();

/// The codebook, column-major, so that lanes are rows.
static COLUMNS: [[f32; ROWS]; 8] = {
    let mut columns = [[0.0; ROWS]; 8];
    let mut n = 0;
    while n < ROWS {
        let mut i = 0;
        while i < 8 {
            columns[i][n] = crate::grids::IQ1[n][i] as f32;
            i += 1;
        }
        n += 1;
    }
    columns
};

/// A super-block of 256 weights: weight = d · (2 · scale + 1) · (row ± ⅛).
pub(crate) struct ShiftedSuperBlock<const SUB: usize> {
    pub d: f16,
    /// 0 to 7.
    pub scales: [u8; SUB],
    pub rows: [u16; 32],
    /// Whether a group of eight weights is shifted down.
    pub down: [bool; 32],
}

/// Σ w·x·v and Σ w·v² of a group of eight for all rows v, shifted up and shifted down.
struct ShiftedRowSums {
    xv: [[f32; ROWS]; 2],
    vv: [[f32; ROWS]; 2],
}

#[derive(Clone, Copy, Default)]
struct BestShiftedRow {
    row: usize,
    xv: f32,
    vv: f32,
    error: f32,
}

impl ShiftedRowSums {
    const ZERO: ShiftedRowSums = ShiftedRowSums { xv: [[0.0; ROWS]; 2], vv: [[0.0; ROWS]; 2] };

    #[inline(always)]
    fn set(&mut self, x: &[f32; 8], w: &[f32; 8]) {
        let (mut all, mut wx) = (0.0, 0.0);
        for i in 0..8 {
            all += w[i];
            wx += w[i] * x[i];
        }
        for first in (0..ROWS).step_by(LANES) {
            let (mut xg, mut wg, mut gg) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            for i in 0..8 {
                let column = &COLUMNS[i][first..first + LANES];
                for l in 0..LANES {
                    let product = w[i] * column[l];
                    xg[l] += product * x[i];
                    wg[l] += product;
                    gg[l] += product * column[l];
                }
            }
            // Both shifts follow from the sums of the unshifted row g: v = g ± δ.
            for (side, delta) in [DELTA, -DELTA].into_iter().enumerate() {
                for l in 0..LANES {
                    self.xv[side][first + l] = xg[l] + delta * wx;
                    self.vv[side][first + l] = gg[l] + delta * (2.0 * wg[l] + delta * all);
                }
            }
        }
    }

    #[inline(always)]
    fn choose(&self, scale: f32, side: usize) -> BestShiftedRow {
        let (mut best, mut rows) = ([f32::INFINITY; LANES], [0u32; LANES]);
        let (square, double) = (scale * scale, 2.0 * scale);
        for first in (0..ROWS).step_by(LANES) {
            let (xv, vv) = (&self.xv[side][first..first + LANES], &self.vv[side][first..first + LANES]);
            for l in 0..LANES {
                // Without Σ w·x², which is the same for all rows.
                let error = square * vv[l] - double * xv[l];
                let better = error < best[l];
                best[l] = if better { error } else { best[l] };
                rows[l] = if better { first as u32 } else { rows[l] };
            }
        }
        let lane = super::lowest(&best);
        let row = (rows[lane] as usize + lane).min(ROWS - 1);
        BestShiftedRow { row, xv: self.xv[side][row], vv: self.vv[side][row], error: best[lane] }
    }
}

/// A sub-block for one scale: rows, sides, and the sums over all groups.
struct SubBlockFit<const GROUPS: usize> {
    groups: [BestShiftedRow; GROUPS],
    sides: [usize; GROUPS],
    xv: f32,
    vv: f32,
    error: f32,
}

/// Chooses rows and sides. With `shared` (IQ1_S), all groups of a sub-block are shifted to the same
/// side.
#[inline(always)]
fn choose_all<const GROUPS: usize>(
    sums: &[ShiftedRowSums; GROUPS],
    scale: f32,
    shared: bool,
) -> SubBlockFit<GROUPS> {
    let mut both = [[BestShiftedRow::default(); GROUPS]; 2];
    let mut errors = [0.0; 2];
    for side in 0..2 {
        for k in 0..GROUPS {
            both[side][k] = sums[k].choose(scale, side);
            errors[side] += both[side][k].error;
        }
    }
    let mut out = SubBlockFit { groups: both[0], sides: [0; GROUPS], xv: 0.0, vv: 0.0, error: 0.0 };
    for k in 0..GROUPS {
        let down = if shared { errors[1] < errors[0] } else { both[1][k].error < both[0][k].error };
        out.sides[k] = usize::from(down);
        out.groups[k] = both[out.sides[k]][k];
        out.xv += out.groups[k].xv;
        out.vv += out.groups[k].vv;
        out.error += out.groups[k].error;
    }
    out
}

#[inline(always)]
fn fit<const GROUPS: usize>(sums: &[ShiftedRowSums; GROUPS], largest: f32, shared: bool) -> f32 {
    // Scales relative to the largest magnitude. The grid ends at 1⅛, so all but the first clip it.
    const STARTS: [f32; 5] = [0.95, 0.8, 0.66, 0.54, 0.43];
    let mut best = (0.0, 0.0);
    for attempt in 0..STARTS.len() + REFINEMENTS {
        let scale = if attempt < STARTS.len() { STARTS[attempt] * largest } else { best.1 };
        let choice = choose_all(sums, scale, shared);
        // The best scale xv / vv reduces the squared error by xv² / vv. Stored scales are positive,
        // so a choice that fits only with a negative scale is skipped.
        if choice.vv > 0.0 && choice.xv > 0.0 && choice.xv * choice.xv > best.0 * choice.vv {
            best = (choice.xv * choice.xv / choice.vv, choice.xv / choice.vv);
        }
    }
    best.1
}

/// Quantizes 256 weights as `SUB` sub-blocks of `GROUPS` groups of eight.
#[inline(always)]
pub(crate) fn super_block<const SUB: usize, const GROUPS: usize>(
    x: &[f32],
    importance: Option<&[f32]>,
    shared: bool,
) -> ShiftedSuperBlock<SUB> {
    let mut w = [0.0; 256];
    error_weights(x, importance, &mut w);
    let mut sums = [ShiftedRowSums::ZERO; GROUPS];
    let (mut fits, mut highest) = ([0.0; SUB], 0.0f32);
    for g in 0..SUB {
        let mut largest = 0.0f32;
        for k in 0..GROUPS {
            let at = (g * GROUPS + k) * 8;
            let group = part::<8>(x, at);
            sums[k].set(&group, &part(&w, at));
            for v in group {
                largest = if v.abs() > largest { v.abs() } else { largest };
            }
        }
        fits[g] = fit(&sums, largest, shared);
        highest = highest.max(fits[g]);
    }
    // The largest scale of a sub-block becomes the largest stored one: 2 · 7 + 1.
    let mut out = ShiftedSuperBlock {
        d: f16::from_f32(highest / 15.0),
        scales: [0; SUB],
        rows: [0; 32],
        down: [false; 32],
    };
    let (mut xv, mut vv) = (0.0, 0.0);
    for g in 0..SUB {
        for k in 0..GROUPS {
            let at = (g * GROUPS + k) * 8;
            // Computed again: the sums of all 32 groups would take 1 MiB.
            sums[k].set(&part(x, at), &part(&w, at));
        }
        let d = out.d.to_f32();
        // Solves fit = d · (2 · scale + 1) for the stored scale.
        let middle = round(clamp((fits[g] * safe_inverse(d) - 1.0) * 0.5, 0.0, 7.0));
        let mut best = (f32::INFINITY, 0.0, 0.0);
        // The middle first, so that it wins ties.
        for off in [0.0, -1.0, 1.0] {
            let stored = clamp(middle + off, 0.0, 7.0);
            let factor = 2.0 * stored + 1.0;
            let choice = choose_all(&sums, d * factor, shared);
            if choice.error < best.0 {
                best = (choice.error, choice.xv * factor, choice.vv * factor * factor);
                out.scales[g] = stored as u8;
                for k in 0..GROUPS {
                    out.rows[g * GROUPS + k] = choice.groups[k].row as u16;
                    out.down[g * GROUPS + k] = choice.sides[k] == 1;
                }
            }
        }
        xv += best.1;
        vv += best.2;
    }
    // The least-squares d for the chosen rows, sides and scales.
    if vv > 0.0 && xv > 0.0 {
        out.d = f16::from_f32(xv / vv);
    }
    out
}
