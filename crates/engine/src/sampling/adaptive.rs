//! Adaptive-p: prefers tokens near a probability, and moves that probability against what was chosen before.

use super::candidate::TokenCandidate;
use super::truncation::softmax;

/// Width of the distribution around the target.
const WIDTH: f32 = 0.3;
/// Logit of a token at the target.
const PEAK: f32 = 5.0;
const SHARPNESS: f32 = 10.0;

/// What adaptive-p keeps from token to token: an exponential moving average of the chosen tokens' probabilities.
pub(super) struct AdaptiveState {
    target: f32,
    decay: f32,
    weighted_sum: f32,
    total_weight: f32,
    /// The token that was sampled, and its probability before the transformation.
    pending: Option<(u32, f32)>,
    originals: Vec<f32>,
}

impl AdaptiveState {
    /// It starts as if all tokens before had been at the target.
    pub(super) fn new(target: f32, decay: f32) -> AdaptiveState {
        let weight = (1.0 - decay).recip();
        AdaptiveState {
            target,
            decay,
            weighted_sum: target * weight,
            total_weight: weight,
            pending: None,
            originals: Vec::new(),
        }
    }

    /// The probability that the next token should have.
    pub(super) fn wanted(&self) -> f32 {
        (2.0 * self.target - self.weighted_sum / self.total_weight).clamp(0.0, 1.0)
    }

    /// Replaces logits by the distance of their probabilities from the wanted one.
    pub(super) fn transform(&mut self, candidates: &mut [TokenCandidate]) {
        softmax(candidates, 1.0);
        self.originals.clear();
        self.originals.extend(candidates.iter().map(|c| c.probability));
        let wanted = self.wanted();
        for candidate in candidates {
            let distance = (candidate.probability - wanted).abs() / WIDTH;
            candidate.logit = PEAK - SHARPNESS * distance * distance / (1.0 + distance);
        }
    }

    /// Takes note of the candidate that was sampled, by its index.
    pub(super) fn sampled(&mut self, index: usize, token: u32) {
        self.pending = self.originals.get(index).map(|probability| (token, *probability));
    }

    /// Moves the average once the sampled token is accepted.
    pub(super) fn accept(&mut self, token: u32) {
        if let Some((_, probability)) = self.pending.take().filter(|(pending, _)| *pending == token) {
            self.weighted_sum = probability + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }
}
