//! Mirostat (Basu et al. 2021): truncates candidates so that the surprise of chosen tokens stays
//! near a target.

use super::candidate::TokenCandidate;
use super::truncation::{likelier, softmax};

/// Number of the likeliest tokens from which version 1 estimates the exponent of Zipf's law.
const ZIPF_TOKENS: usize = 100;

/// State between tokens.
pub(super) struct Mirostat {
    /// Maximum surprise in bits. It is corrected by the error of each token.
    max_surprise: f32,
    target: f32,
    rate: f32,
}

impl Mirostat {
    pub(super) fn new(target: f32, rate: f32) -> Mirostat {
        // 2 · target is the initial value of the paper.
        Mirostat { max_surprise: 2.0 * target, target, rate }
    }

    /// Version 1: keeps the number of likeliest tokens that follows from the estimated exponent of
    /// Zipf's law.
    pub(super) fn truncate_by_zipf(&self, vocab: usize, candidates: &mut Vec<TokenCandidate>) {
        candidates.sort_unstable_by(likelier);
        softmax(candidates, 1.0);
        // Least squares: the slope of log probability over log rank, from differences of
        // neighbours.
        let (mut products, mut squares) = (0.0f64, 0.0f64);
        for (rank, pair) in candidates.windows(2).take(ZIPF_TOKENS - 1).enumerate() {
            let [likelier, other] = pair else { continue };
            let step = ((rank + 2) as f64 / (rank + 1) as f64).ln();
            products += step * (f64::from(likelier.probability) / f64::from(other.probability)).ln();
            squares += step * step;
        }
        let exponent = products / squares;
        let above_one = exponent - 1.0;
        let numerator = above_one * f64::from(self.max_surprise).exp2();
        let count = (numerator / (1.0 - (vocab as f64).powf(-above_one))).powf(exponent.recip());
        // 0 / 0 for one candidate, and infinities for probabilities of 0.
        let count = if count.is_nan() { 1.0 } else { count };
        candidates.truncate((count as usize).max(1));
    }

    /// Version 2: drops tokens with more than the maximum surprise.
    pub(super) fn truncate_by_surprise(&self, candidates: &mut Vec<TokenCandidate>) {
        candidates.sort_unstable_by(likelier);
        softmax(candidates, 1.0);
        let kept = candidates.iter().take_while(|c| -c.probability.log2() <= self.max_surprise).count();
        candidates.truncate(kept.max(1));
    }

    /// Corrects the maximum surprise by the probability of a chosen token among the remaining
    /// candidates.
    pub(super) fn observe(&mut self, probability: f32) {
        self.max_surprise -= self.rate * (-probability.log2() - self.target);
    }

    #[cfg(test)]
    pub(super) fn max_surprise(&self) -> f32 {
        self.max_surprise
    }
}
