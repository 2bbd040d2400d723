//! The chain of samplers.

use super::candidate::{Candidate, of_token};
use super::params::SamplingParams;
use super::random::Random;
use super::{dry, penalties, truncation};
use crate::error::EngineError;
use latent_backend::{Logits, MAX_TOP_LOGITS, TokenLogit};

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
        self.sample_of(Logits::Whole(logits))
    }

    /// How many of the largest logits give the same choice as a whole row once `accepted` more tokens are accepted; 0 where only a whole row does.
    pub(crate) fn enough(&self, accepted: usize) -> usize {
        let params = &self.params;
        let raises = params.logit_bias.iter().any(|(_, bias)| *bias > 0.0) || !penalties::only_lower(params);
        if raises || params.dry_multiplier != 0.0 {
            return 0;
        }
        let kept = match params.top_k {
            _ if params.temperature <= 0.0 => 1,
            0 => return 0,
            // one more tells whether there are any that top-k drops
            k => k.saturating_add(1),
        };
        // each logit that is lowered may make room for one that was not among the largest
        let lowered = penalties::window(params).min(self.seen.len() + accepted) + params.logit_bias.len();
        match kept.saturating_add(lowered) {
            enough if enough <= MAX_TOP_LOGITS => enough,
            _ => 0,
        }
    }

    /// The next token, of a whole row or of as many of its largest logits as are [enough](Self::enough).
    pub(crate) fn sample_of(&mut self, logits: Logits<'_>) -> Result<u32, EngineError> {
        self.candidates.clear();
        let candidate = |id: u32, logit: f32| Candidate { id, logit, probability: 0.0 };
        match logits {
            Logits::Whole(logits) => {
                self.candidates.extend((0..).zip(logits).map(|(id, logit)| candidate(id, *logit)));
            }
            Logits::Largest(logits) => {
                let each = |TokenLogit { token, logit }: &TokenLogit| candidate(*token, *logit);
                self.candidates.extend(logits.iter().map(each));
            }
        }
        for (id, bias) in &self.params.logit_bias {
            if let Some(candidate) = of_token(&mut self.candidates, *id) {
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
