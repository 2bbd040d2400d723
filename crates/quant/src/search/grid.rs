//! Codebooks of magnitudes with separate signs. The search visits every row of the codebook: for a
//! group of weights it sums Σ w·|x|·g and Σ w·g² of all rows g once, which yields the error of each
//! row for any scale.

use super::{LANES, REFINEMENTS, clamp, error_weights, part, round, safe_inverse};
use half::f16;

/// A codebook of `N` rows of `W` values, column-major, so that lanes are rows.
pub(crate) struct QuantCodebook<const W: usize, const N: usize> {
    columns: [[f32; N]; W],
}

impl<const W: usize, const N: usize> QuantCodebook<W, N> {
    pub(crate) const fn new(rows: &[[i8; W]; N]) -> QuantCodebook<W, N> {
        let mut columns = [[0.0; N]; W];
        let mut n = 0;
        while n < N {
            let mut i = 0;
            while i < W {
                columns[i][n] = rows[n][i] as f32;
                i += 1;
            }
            n += 1;
        }
        QuantCodebook { columns }
    }
}

/// The scales and signs of a format.
#[derive(Clone, Copy)]
pub(crate) struct GridScaling {
    /// A stored scale s is decoded to d · (s + ½) · unit.
    pub unit: f32,
    /// The largest value of the codebook.
    pub top: f32,
    /// The signs of eight weights have even parity.
    pub even: bool,
}

/// A super-block of 256 weights in `SUB` sub-blocks, with the rows of up to 64 groups.
pub(crate) struct GridSuperBlock<const SUB: usize> {
    pub d: f16,
    /// 0 to 15.
    pub scales: [u8; SUB],
    pub rows: [u16; 64],
    /// Bit i of a byte: weight i of eight is negative.
    pub signs: [u8; 32],
}

/// Magnitudes and signs of weights. A magnitude is negative if parity forces the wrong sign.
struct SignedMagnitudes {
    sizes: [f32; 256],
    signs: [u8; 32],
}

#[inline(always)]
fn split_signs(x: &[f32], w: &[f32; 256], even: bool) -> SignedMagnitudes {
    let mut out = SignedMagnitudes { sizes: [0.0; 256], signs: [0; 32] };
    for n in 0..32 {
        let (mut bits, mut cheapest) = (0u8, (f32::INFINITY, 0));
        for i in 0..8 {
            let v = x[n * 8 + i];
            out.sizes[n * 8 + i] = v.abs();
            bits |= u8::from(v < 0.0) << i;
            let cost = w[n * 8 + i] * v * v;
            if cost < cheapest.0 {
                cheapest = (cost, i);
            }
        }
        // Formats without a bit for the eighth sign need even parity. The sign of the weight whose
        // error costs least is flipped; its negative magnitude then selects a row with a small
        // value there.
        if even && bits.count_ones() % 2 == 1 {
            bits ^= 1 << cheapest.1;
            let size = &mut out.sizes[n * 8 + cheapest.1];
            *size = -*size;
        }
        out.signs[n] = bits;
    }
    out
}

/// Σ w·x·g and Σ w·g² of a group for all rows.
struct GridRowSums<const N: usize> {
    xg: [f32; N],
    gg: [f32; N],
}

/// The best row of a group for a scale: its number and its two sums.
#[derive(Clone, Copy, Default)]
struct BestGridRow {
    row: usize,
    xg: f32,
    gg: f32,
}

impl<const N: usize> GridRowSums<N> {
    #[inline(always)]
    fn set<const W: usize>(&mut self, grid: &QuantCodebook<W, N>, x: &[f32], w: &[f32]) {
        let (mut wx, mut ws) = ([0.0; W], [0.0; W]);
        for i in 0..W {
            (wx[i], ws[i]) = (w[i] * x[i], w[i]);
        }
        for first in (0..N).step_by(LANES) {
            let (mut xg, mut gg) = ([0.0; LANES], [0.0; LANES]);
            for i in 0..W {
                let column = &grid.columns[i][first..first + LANES];
                for l in 0..LANES {
                    let g = column[l];
                    xg[l] += wx[i] * g;
                    gg[l] += ws[i] * g * g;
                }
            }
            self.xg[first..first + LANES].copy_from_slice(&xg);
            self.gg[first..first + LANES].copy_from_slice(&gg);
        }
    }

    /// The row with the lowest error for a scale. Each lane has the best of its rows, then the
    /// lanes are compared.
    #[inline(always)]
    fn choose(&self, scale: f32) -> BestGridRow {
        let (mut best, mut rows) = ([f32::INFINITY; LANES], [0u32; LANES]);
        let (square, double) = (scale * scale, 2.0 * scale);
        for first in (0..N).step_by(LANES) {
            let (xg, gg) = (&self.xg[first..first + LANES], &self.gg[first..first + LANES]);
            for l in 0..LANES {
                // Σ w·(x − s·g)² without the constant Σ w·x².
                let error = square * gg[l] - double * xg[l];
                let better = error < best[l];
                best[l] = if better { error } else { best[l] };
                rows[l] = if better { first as u32 } else { rows[l] };
            }
        }
        let lane = super::lowest(&best);
        // The minimum lets the compiler omit bounds checks.
        let row = (rows[lane] as usize + lane).min(N - 1);
        BestGridRow { row, xg: self.xg[row], gg: self.gg[row] }
    }
}

/// The groups of a sub-block for one scale.
#[inline(always)]
fn choose_all<const N: usize, const GROUPS: usize>(
    sums: &[GridRowSums<N>; GROUPS],
    scale: f32,
) -> ([BestGridRow; GROUPS], f32, f32) {
    let mut chosen = [BestGridRow::default(); GROUPS];
    let (mut xg, mut gg) = (0.0, 0.0);
    for k in 0..GROUPS {
        chosen[k] = sums[k].choose(scale);
        xg += chosen[k].xg;
        gg += chosen[k].gg;
    }
    (chosen, xg, gg)
}

/// The best scale of a sub-block, searched from several that map the largest magnitude to the top
/// of the codebook or beyond it.
#[inline(always)]
fn fit<const N: usize, const GROUPS: usize>(sums: &[GridRowSums<N>; GROUPS], largest: f32, top: f32) -> f32 {
    // Factors on largest / top. Below 1 the largest magnitude is clipped, which leaves more rows
    // for the other weights.
    const STARTS: [f32; 6] = [1.1, 0.95, 0.82, 0.7, 0.6, 0.5];
    let mut best = (0.0, 0.0);
    for attempt in 0..STARTS.len() + REFINEMENTS {
        let scale = if attempt < STARTS.len() { STARTS[attempt] * largest / top } else { best.1 };
        let (_, xg, gg) = choose_all(sums, scale);
        // The least-squares scale for these rows is xg / gg; it reduces the error by xg² / gg.
        // Compared without a division.
        if gg > 0.0 && xg > 0.0 && xg * xg > best.0 * gg {
            best = (xg * xg / gg, xg / gg);
        }
    }
    best.1
}

/// Quantizes 256 weights as `SUB` sub-blocks of `GROUPS` groups of `W` weights.
#[inline(always)]
pub(crate) fn super_block<const SUB: usize, const GROUPS: usize, const W: usize, const N: usize>(
    x: &[f32],
    importance: Option<&[f32]>,
    grid: &QuantCodebook<W, N>,
    form: GridScaling,
) -> GridSuperBlock<SUB> {
    let mut w = [0.0; 256];
    error_weights(x, importance, &mut w);
    let SignedMagnitudes { sizes, signs } = split_signs(x, &w, form.even);
    let mut sums: [GridRowSums<N>; GROUPS] = [const { GridRowSums { xg: [0.0; N], gg: [0.0; N] } }; GROUPS];
    let mut fits = [0.0; SUB];
    let mut highest = 0.0f32;
    for g in 0..SUB {
        let mut largest = 0.0f32;
        for k in 0..GROUPS {
            let at = (g * GROUPS + k) * W;
            let group = part::<W>(&sizes, at);
            sums[k].set(grid, &group, &part::<W>(&w, at));
            for v in group {
                largest = if v > largest { v } else { largest };
            }
        }
        fits[g] = fit(&sums, largest, form.top);
        highest = highest.max(fits[g]);
    }
    // The largest scale of a sub-block becomes the largest stored one, 15.
    let mut out = GridSuperBlock {
        d: f16::from_f32(highest / (15.5 * form.unit)),
        scales: [0; SUB],
        rows: [0; 64],
        signs,
    };
    // The sums are computed again: stored for a whole super-block they would take up to 256 KB.
    let (mut xg, mut gg) = (0.0, 0.0);
    for g in 0..SUB {
        for k in 0..GROUPS {
            let at = (g * GROUPS + k) * W;
            sums[k].set(grid, &part::<W>(&sizes, at), &part::<W>(&w, at));
        }
        let step = out.d.to_f32() * form.unit;
        let middle = round(clamp(fits[g] * safe_inverse(step) - 0.5, 0.0, 15.0));
        let mut best = (f32::INFINITY, 0.0, 0.0);
        // Neighbors too, since d was rounded to f16 and the scale to an integer. The middle first,
        // so that it wins ties.
        for off in [0.0, -1.0, 1.0] {
            let stored = clamp(middle + off, 0.0, 15.0);
            let scale = step * (stored + 0.5);
            let (chosen, sub_xg, sub_gg) = choose_all(&sums, scale);
            let error = scale * (scale * sub_gg - 2.0 * sub_xg);
            if error < best.0 {
                best = (error, sub_xg * (stored + 0.5), sub_gg * (stored + 0.5) * (stored + 0.5));
                out.scales[g] = stored as u8;
                for k in 0..GROUPS {
                    out.rows[g * GROUPS + k] = chosen[k].row as u16;
                }
            }
        }
        xg += best.1;
        gg += best.2;
    }
    // The least-squares d for the chosen rows and scales.
    if gg > 0.0 && xg > 0.0 {
        out.d = f16::from_f32(xg / (gg * form.unit));
    }
    out
}
