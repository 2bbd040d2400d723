//! Batches of rows that are rounded group by group.

use super::factor::HessianFactor;
use super::group::{GroupFactor, GroupTargets};

/// A batch of rows while their columns are rounded. The memory is reused for the next batch.
#[derive(Default)]
pub struct GptqRows {
    /// Weights by position.
    pub(crate) weights: Vec<f32>,
    /// Targets by position.
    pub(crate) targets: Vec<f32>,
}

/// Rows per batch: a group's part of the factor is read once for all of them.
pub(crate) const BATCH_ROWS: usize = 32;

impl GptqRows {
    /// Copies rows, with columns in the order of the factor.
    #[inline(always)]
    pub(crate) fn start(&mut self, factor: &HessianFactor, rows: &[f32]) {
        self.weights.clear();
        for row in rows.chunks_exact(factor.columns()) {
            self.weights.extend(factor.order().iter().map(|column| row[*column as usize]));
        }
        self.targets.clone_from(&self.weights);
    }

    /// A row's weights and targets of the group that begins at a position.
    #[inline(always)]
    pub(crate) fn group<const G: usize>(&self, columns: usize, row: usize, first: usize) -> GroupTargets<G> {
        let at = row * columns + first;
        let mut out = GroupTargets { weights: [0.0; G], targets: [0.0; G] };
        out.weights.copy_from_slice(&self.weights[at..at + G]);
        out.targets.copy_from_slice(&self.targets[at..at + G]);
        out
    }

    /// Adjusts the targets after a group by its errors.
    #[inline(always)]
    pub(crate) fn carry<const G: usize>(
        &mut self,
        factor: &HessianFactor,
        row: usize,
        first: usize,
        errors: &[f32; G],
    ) {
        const LANES: usize = 16;
        let (columns, behind) = (factor.columns(), first + G);
        let targets = &mut self.targets[row * columns + behind..(row + 1) * columns];
        // Four columns at a time, so that a target is loaded and stored once for all of them.
        for k in (0..G).step_by(4) {
            // A row of ratios begins at its own position, G − k − n positions before the targets.
            let ratios: [&[f32]; 4] = std::array::from_fn(|n| &factor.ratios(first + k + n)[G - k - n..]);
            let errors: [f32; 4] = std::array::from_fn(|n| errors[k + n]);
            let mut at = 0;
            while at + LANES <= targets.len() {
                let mut sums = [0.0; LANES];
                sums.copy_from_slice(&targets[at..at + LANES]);
                for n in 0..4 {
                    let ratios = &ratios[n][at..at + LANES];
                    for l in 0..LANES {
                        sums[l] += errors[n] * ratios[l];
                    }
                }
                targets[at..at + LANES].copy_from_slice(&sums);
                at += LANES;
            }
            for i in at..targets.len() {
                for n in 0..4 {
                    targets[i] += errors[n] * ratios[n][i];
                }
            }
        }
    }
}

/// The part of a factor within the group that begins at a position.
#[inline(always)]
pub(crate) fn group_factor<const G: usize>(factor: &HessianFactor, first: usize) -> GroupFactor<G> {
    let mut out = GroupFactor { ratios: [[0.0; G]; G], costs: [0.0; G] };
    out.costs.copy_from_slice(&factor.costs()[first..first + G]);
    for k in 0..G {
        let ratios = factor.ratios(first + k);
        for i in k + 1..G {
            out.ratios[i][k] = ratios[i - k];
        }
    }
    out
}
