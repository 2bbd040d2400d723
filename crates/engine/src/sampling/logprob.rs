//! Log-probabilities under the model, before any sampler.

use std::cmp::Ordering;

/// A token with its log-probability under the model.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LogProbability {
    /// The token id.
    pub id: u32,
    /// The natural logarithm of the probability.
    pub logprob: f32,
}

/// The log-probability of `token`, and those of the `top` likeliest tokens, likeliest first. NaN
/// logits count as −∞.
pub fn log_probabilities(logits: &[f32], token: u32, top: usize) -> (f32, Vec<LogProbability>) {
    let plain = |l: f32| if l.is_nan() { f32::NEG_INFINITY } else { l };
    let max = logits.iter().copied().map(plain).fold(f32::NEG_INFINITY, f32::max);
    // A token with an infinite logit is certain. The difference of two infinities would be NaN.
    let above = |l: f32| if plain(l) == max { 0.0 } else { f64::from(plain(l)) - f64::from(max) };
    // In f64: an f32 sum over 100,000 tokens would lose digits.
    let sum: f64 = logits.iter().map(|l| above(*l).exp()).sum();
    let log = |l: f32| if plain(l) == f32::NEG_INFINITY { plain(l) } else { (above(l) - sum.ln()) as f32 };
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let better = |a: &u32, b: &u32| {
        plain(logits[*b as usize])
            .partial_cmp(&plain(logits[*a as usize]))
            .unwrap_or(Ordering::Equal)
            .then(a.cmp(b))
    };
    let top = top.min(order.len());
    // Selects before sorting: the vocabulary is much larger than `top`.
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, better);
    }
    order.truncate(top);
    order.sort_unstable_by(better);
    let list = order.into_iter().map(|id| LogProbability { id, logprob: log(logits[id as usize]) }).collect();
    (logits.get(token as usize).map_or(f32::NEG_INFINITY, |l| log(*l)), list)
}
