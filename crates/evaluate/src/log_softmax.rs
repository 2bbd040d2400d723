//! Log-probabilities of the next token.

/// Normalization of the logits of one position to log-probabilities, and the likeliest token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogSoftmax {
    /// The largest logit.
    pub max: f32,
    /// The first token with the largest logit.
    pub top: usize,
    /// `ln Σ exp(logit − max)`.
    pub ln_sum: f64,
}

impl LogSoftmax {
    /// `None` if a logit is NaN or +∞, which have no probabilities. (−∞ is a probability of 0.)
    pub fn of(logits: &[f32]) -> Option<LogSoftmax> {
        let (mut top, mut max) = (0, f32::NEG_INFINITY);
        for (token, logit) in logits.iter().enumerate() {
            if *logit > max {
                (top, max) = (token, *logit);
            }
        }
        // Subtracting the maximum keeps `exp` from overflowing. The sum is in f64: 128k terms in
        // f32 would lose digits.
        let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
        // A NaN is never larger than `max`, but makes the sum NaN. Only −∞ leaves `max` at −∞.
        (max.is_finite() && sum.is_finite()).then(|| LogSoftmax { max, top, ln_sum: sum.ln() })
    }

    /// ln of a logit's probability.
    pub fn ln_p(&self, logit: f32) -> f64 {
        f64::from(logit) - f64::from(self.max) - self.ln_sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_the_first_of_equals_is_the_top() {
        let logits = [1.0f32, 3.0, -2.0, 3.0, f32::NEG_INFINITY];
        let softmax = LogSoftmax::of(&logits).unwrap();
        let sum: f64 = logits.iter().map(|logit| softmax.ln_p(*logit).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6 && softmax.top == 1);
        for wrong in [f32::NAN, f32::INFINITY] {
            assert_eq!(LogSoftmax::of(&[0.0, wrong]), None);
        }
        assert_eq!(LogSoftmax::of(&[f32::NEG_INFINITY; 2]), None);
    }
}
