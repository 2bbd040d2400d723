//! Sampling: from logits to the next token.
//!
//! The chain, in llama.cpp's order: logit bias, penalties, DRY, top-k, typical, top-p, min-p, XTC, temperature; at temperature 0 the
//! likeliest token after bias, penalties and DRY. Probabilities that are reported are those of the model: before any of it.

mod dry;
mod params;
mod penalties;
mod random;
mod stop;
mod truncation;

pub use params::SamplingParams;
pub use stop::StopStrings;

use crate::error::EngineError;
use random::Random;
use std::cmp::Ordering;

/// A token with what speaks for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: u32,
    pub(crate) logit: f32,
    pub(crate) probability: f32,
}

/// A token with its log-probability under the model.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct LogProbability {
    /// The token.
    pub id: u32,
    /// ln of its probability before any sampler.
    pub logprob: f32,
}

/// Chooses tokens one after the other.
pub struct Sampler {
    params: SamplingParams,
    random: Random,
    seen: Vec<u32>,
    candidates: Vec<Candidate>,
    scratch: truncation::Scratch,
    dry: dry::Dry,
    penalties: penalties::Penalties,
}

impl Sampler {
    /// A sampler for a vocabulary. `breakers` are the tokens at which DRY stops looking for a repetition.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn new(params: SamplingParams, vocab: usize, breakers: Vec<u32>) -> Result<Sampler, EngineError> {
        params.validate(vocab)?;
        Ok(Sampler {
            random: Random::new(params.seed),
            seen: Vec::new(),
            candidates: Vec::with_capacity(vocab),
            scratch: truncation::Scratch::default(),
            dry: dry::Dry::new(breakers),
            penalties: penalties::Penalties::new(vocab),
            params,
        })
    }

    /// Takes note of a token of the prompt or of the answer: penalties look back on it.
    pub fn accept(&mut self, token: u32) {
        self.seen.push(token);
    }

    /// The next token. It is not yet [accepted](Self::accept).
    ///
    /// # Errors
    /// When no logit is a number.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, EngineError> {
        self.candidates.clear();
        let candidate =
            |(id, logit): (usize, &f32)| Candidate { id: id as u32, logit: *logit, probability: 0.0 };
        self.candidates.extend(logits.iter().enumerate().map(candidate));
        for (id, bias) in &self.params.logit_bias {
            if let Some(candidate) = self.candidates.get_mut(*id as usize) {
                candidate.logit += bias;
            }
        }
        self.penalties.apply(&self.params, &self.seen, &mut self.candidates);
        self.dry.apply(&self.params, &self.seen, &mut self.candidates);
        self.candidates.retain(|c| !c.logit.is_nan() && c.logit != f32::NEG_INFINITY);
        if self.candidates.is_empty() {
            let problem =
                "no token can be chosen: every logit is NaN or −∞ (a damaged model, or every token banned)";
            return Err(EngineError::Sampling(problem.into()));
        }
        if self.params.temperature <= 0.0 {
            return Ok(likeliest(&self.candidates));
        }
        truncation::truncate(&self.params, &mut self.random, &mut self.candidates, &mut self.scratch);
        Ok(self.draw())
    }

    /// One of the remaining candidates, by their probabilities at the temperature.
    fn draw(&mut self) -> u32 {
        truncation::softmax(&mut self.candidates, self.params.temperature);
        let point = self.random.unit();
        let mut sum = 0.0f64;
        for candidate in &self.candidates {
            sum += f64::from(candidate.probability);
            if point < sum {
                return candidate.id;
            }
        }
        // rounding left the sum below the point
        self.candidates.last().map_or(0, |c| c.id)
    }
}

/// The largest logit, the lower id of equal ones.
fn likeliest(candidates: &[Candidate]) -> u32 {
    let mut best = candidates[0];
    for candidate in candidates {
        if candidate.logit > best.logit || (candidate.logit == best.logit && candidate.id < best.id) {
            best = *candidate;
        }
    }
    best.id
}

/// ln of the probability of `token`, and the `top` likeliest tokens with theirs, likeliest first. NaN counts as −∞.
pub fn log_probabilities(logits: &[f32], token: u32, top: usize) -> (f32, Vec<LogProbability>) {
    let plain = |l: f32| if l.is_nan() { f32::NEG_INFINITY } else { l };
    let max = logits.iter().copied().map(plain).fold(f32::NEG_INFINITY, f32::max);
    // an infinite logit is certain; the difference of equal infinities would be NaN
    let above = |l: f32| if plain(l) == max { 0.0 } else { f64::from(plain(l)) - f64::from(max) };
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
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, better);
    }
    order.truncate(top);
    order.sort_unstable_by(better);
    let list = order.into_iter().map(|id| LogProbability { id, logprob: log(logits[id as usize]) }).collect();
    (logits.get(token as usize).map_or(f32::NEG_INFINITY, |l| log(*l)), list)
}

#[cfg(test)]
mod tests;
