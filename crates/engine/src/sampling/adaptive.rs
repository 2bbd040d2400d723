//! Adaptive-p: prefers tokens near a target probability, and corrects the target by the
//! probabilities of earlier tokens.

use super::candidate::TokenCandidate;
use super::truncation::softmax;

// The constants of llama.cpp's sampler.
/// Width of the distribution around the target.
const WIDTH: f32 = 0.3;
/// Logit of a token at the target.
const PEAK: f32 = 5.0;
const SHARPNESS: f32 = 10.0;

/// State between tokens: an exponential moving average of the chosen tokens' probabilities.
pub(super) struct AdaptiveState {
    target: f32,
    decay: f32,
    weighted_sum: f32,
    total_weight: f32,
    /// The token that was sampled, and its probability before the transformation.
    pending: Option<(u32, f32)>,
    /// The probabilities of all candidates before the transformation.
    originals: Vec<f32>,
}

impl AdaptiveState {
    /// The state as if all earlier tokens had been at the target: the sum of the weights 1, decay,
    /// decay², … is 1 / (1 − decay).
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

    /// The probability that the next token should have: as far above the target as the average is
    /// below.
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
            // Quadratic near the target, linear far from it.
            candidate.logit = PEAK - SHARPNESS * distance * distance / (1.0 + distance);
        }
    }

    /// Records the candidate that was sampled, by its index.
    pub(super) fn sampled(&mut self, index: usize, token: u32) {
        self.pending = self.originals.get(index).map(|probability| (token, *probability));
    }

    /// Moves the average once the sampled token is accepted.
    pub(super) fn accept(&mut self, token: u32) {
        // Tokens of the prompt, and those that a logits processor chose, were not sampled here.
        if let Some((_, probability)) = self.pending.take().filter(|(pending, _)| *pending == token) {
            self.weighted_sum = probability + self.decay * self.weighted_sum;
            self.total_weight = 1.0 + self.decay * self.total_weight;
        }
    }
}
