//! The chain of samplers.

use super::adaptive::AdaptiveState;
use super::breakers::Breakers;
use super::candidate::{TokenCandidate, of_token};
use super::kind::SamplerKind;
use super::logprob::LogProbability;
use super::mirostat::Mirostat;
use super::params::SamplingParams;
use super::random::Random;
use super::{dry, infill, penalties, truncation};
use crate::error::EngineError;
use latent_backend::{Logits, MAX_TOP_LOGITS, TokenLogit};
use latent_text::Tokenizer;
use std::sync::Arc;

/// Chooses tokens one after the other.
pub struct Sampler {
    params: SamplingParams,
    order: Vec<SamplerKind>,
    greedy: bool,
    vocab: usize,
    random: Random,
    seen: Vec<u32>,
    candidates: Vec<TokenCandidate>,
    scratch: truncation::TypicalScratch,
    dry: dry::DrySampler,
    penalties: penalties::Penalties,
    mirostat: Mirostat,
    adaptive: AdaptiveState,
    /// What the infill sampler reads.
    tokenizer: Option<Arc<Tokenizer>>,
}

impl Sampler {
    /// A sampler for a vocabulary. `breakers` are the tokens at which DRY stops looking for a repetition.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn new(params: SamplingParams, vocab: usize, breakers: Vec<u32>) -> Result<Sampler, EngineError> {
        Sampler::with_breakers(params, vocab, Breakers::of_tokens(breakers), None)
    }

    /// A sampler for the vocabulary of a tokenizer, with DRY's sequence breakers from its tokens.
    ///
    /// # Errors
    /// A parameter out of its range.
    pub fn of_tokenizer(
        params: SamplingParams,
        vocab: usize,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Sampler, EngineError> {
        let breakers = match params.dry_multiplier == 0.0 {
            true => Breakers::default(),
            false => Breakers::of_texts(tokenizer, vocab, params.dry_breakers.as_deref()),
        };
        Sampler::with_breakers(params, vocab, breakers, Some(Arc::clone(tokenizer)))
    }

    fn with_breakers(
        mut params: SamplingParams,
        vocab: usize,
        breakers: Breakers,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Result<Sampler, EngineError> {
        params.validate(vocab)?;
        if let Some(allowed) = &mut params.allowed_tokens {
            allowed.sort_unstable();
            allowed.dedup();
        }
        let order = params.order();
        Ok(Sampler {
            greedy: params.is_greedy(&order),
            order,
            vocab,
            random: Random::new(params.seed),
            seen: Vec::new(),
            candidates: Vec::new(),
            scratch: truncation::TypicalScratch::default(),
            dry: dry::DrySampler::new(breakers),
            penalties: penalties::Penalties::new(),
            mirostat: Mirostat::new(params.mirostat_tau, params.mirostat_eta),
            adaptive: AdaptiveState::new(params.adaptive_target, params.adaptive_decay),
            tokenizer,
            params,
        })
    }

    /// Takes note of a token of the prompt or of the answer: penalties look back on it.
    pub fn accept(&mut self, token: u32) {
        self.adaptive.accept(token);
        self.seen.push(token);
    }

    /// The next token. It is not yet [accepted](Self::accept).
    ///
    /// # Errors
    /// When no logit is a number.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, EngineError> {
        self.sample_of(Logits::Whole(logits), &[])
    }

    /// ln of the probability with which the last token was sampled, after all samplers, and the `top` likeliest tokens with theirs. Tokens that
    /// a sampler has dropped are not among them.
    pub(crate) fn sampled_probabilities(&self, token: u32, top: usize) -> (f32, Vec<LogProbability>) {
        let mut left: Vec<&TokenCandidate> = self.candidates.iter().filter(|c| c.probability > 0.0).collect();
        left.sort_unstable_by(|a, b| b.probability.total_cmp(&a.probability).then(a.id.cmp(&b.id)));
        let own = left.iter().find(|c| c.id == token).map_or(0.0, |c| c.probability);
        left.truncate(top);
        let list = left.into_iter().map(|c| LogProbability { id: c.id, logprob: c.probability.ln() });
        (own.ln(), list.collect())
    }

    /// How many of the largest logits give the same choice as a whole row once `accepted` more tokens are accepted and while `banned` ones are
    /// banned; 0 where only a whole row does.
    pub(crate) fn enough(&self, accepted: usize, banned: usize) -> usize {
        let params = &self.params;
        let raises = params.logit_bias.iter().any(|(_, bias)| *bias > 0.0) || !penalties::only_lower(params);
        let reads_all = params.dry_multiplier != 0.0 || params.allowed_tokens.is_some();
        if raises || reads_all || !self.begins_with_top_k() {
            return 0;
        }
        let kept = match params.top_k {
            _ if self.greedy => 1,
            0 => return 0,
            // one more tells whether there are any that top-k drops
            k => k.saturating_add(1),
        };
        // each logit that is lowered may make room for one that was not among the largest
        let lowered = penalties::window(params).min(self.seen.len().saturating_add(accepted));
        let lowered = lowered.saturating_add(params.logit_bias.len()).saturating_add(banned);
        match kept.saturating_add(lowered) {
            enough if enough <= MAX_TOP_LOGITS => enough,
            _ => 0,
        }
    }

    /// Whether nothing but the likeliest candidates matters after penalties.
    fn begins_with_top_k(&self) -> bool {
        if self.greedy {
            return true;
        }
        let off = |kind: &SamplerKind| match kind {
            SamplerKind::Penalties | SamplerKind::Dry => true,
            SamplerKind::TopNSigma => self.params.top_n_sigma <= 0.0,
            _ => false,
        };
        let first = self.order.iter().find(|kind| !off(kind));
        self.params.mirostat == 0 && first == Some(&SamplerKind::TopK)
    }

    /// The next token, of a whole row or of as many of its largest logits as are [enough](Self::enough). Tokens in `banned`, which is in
    /// ascending order, are chosen only if nothing else can be.
    pub(crate) fn sample_of(&mut self, logits: Logits<'_>, banned: &[u32]) -> Result<u32, EngineError> {
        self.fill(logits);
        for (id, bias) in &self.params.logit_bias {
            if let Some(candidate) = of_token(&mut self.candidates, *id) {
                candidate.logit += bias;
            }
        }
        if let Some(allowed) = &self.params.allowed_tokens {
            self.candidates.retain(|c| allowed.binary_search(&c.id).is_ok());
        }
        if !banned.is_empty() {
            let left = |c: &TokenCandidate| can_be_chosen(c) && banned.binary_search(&c.id).is_err();
            if self.candidates.iter().any(left) {
                self.candidates.retain(left);
            }
        }
        self.apply_chain();
        if self.candidates.is_empty() {
            let problem =
                "no token can be chosen: every logit is NaN or −∞ (a damaged model, or every token banned)";
            return Err(EngineError::Sampling(problem.into()));
        }
        if self.greedy {
            truncation::keep_likeliest(&mut self.candidates);
            return Ok(self.candidates[0].id);
        }
        Ok(self.draw())
    }

    fn fill(&mut self, logits: Logits<'_>) {
        self.candidates.clear();
        let candidate = |id: u32, logit: f32| TokenCandidate { id, logit, probability: 0.0 };
        match logits {
            Logits::Whole(logits) => {
                self.candidates.extend((0..).zip(logits).map(|(id, logit)| candidate(id, *logit)));
            }
            Logits::Largest(logits) => {
                let each = |TokenLogit { token, logit }: &TokenLogit| candidate(*token, *logit);
                self.candidates.extend(logits.iter().map(each));
            }
        }
    }

    /// Runs the samplers in their order. Those that truncate are left out where the likeliest token is wanted, and where Mirostat truncates.
    fn apply_chain(&mut self) {
        let (params, candidates) = (&self.params, &mut self.candidates);
        let only_penalties = self.greedy || params.mirostat > 0;
        // penalties need candidates in the order of their ids
        let (mut by_id, mut checked) = (true, false);
        for (at, kind) in self.order.iter().enumerate() {
            if matches!(kind, SamplerKind::Penalties | SamplerKind::Dry) {
                if !by_id {
                    candidates.sort_unstable_by_key(|c| c.id);
                    by_id = true;
                }
                match kind {
                    SamplerKind::Penalties => self.penalties.apply(params, &self.seen, candidates),
                    _ => self.dry.apply(params, &self.seen, candidates),
                }
                checked = false;
                continue;
            }
            if !checked {
                candidates.retain(can_be_chosen);
                checked = true;
            }
            if only_penalties || candidates.is_empty() {
                continue;
            }
            by_id = false;
            match kind {
                SamplerKind::TopNSigma => truncation::top_n_sigma(params.top_n_sigma, candidates),
                SamplerKind::TopK => truncation::top_k(params.top_k, candidates),
                SamplerKind::Typical => {
                    truncation::typical(params.typical_p, params.min_keep, candidates, &mut self.scratch);
                }
                SamplerKind::TopP => {
                    let sorts = params.xtc_probability > 0.0;
                    truncation::keep_top_p(params.top_p, params.min_keep, sorts, candidates);
                }
                SamplerKind::MinP => truncation::min_p(params.min_p, params.min_keep, candidates),
                SamplerKind::Xtc => truncation::xtc(params, &mut self.random, candidates),
                SamplerKind::Temperature => {
                    let temperature = match params.dynatemp_range > 0.0 {
                        true if candidates.len() < 2 => continue,
                        true => truncation::dynamic_temperature(params, candidates),
                        false => params.temperature,
                    };
                    // a repetition penalty depends on the sign of logits
                    let shifts = !self.order[at..].contains(&SamplerKind::Penalties);
                    truncation::temperature(temperature, shifts, candidates);
                }
                SamplerKind::Infill => {
                    if let Some(tokenizer) = &self.tokenizer {
                        infill::infill(tokenizer, candidates);
                    }
                }
                SamplerKind::Penalties | SamplerKind::Dry | SamplerKind::AdaptiveP => {}
            }
        }
        if !checked {
            candidates.retain(can_be_chosen);
        }
    }

    /// One of the remaining candidates, by their probabilities.
    fn draw(&mut self) -> u32 {
        let params = &self.params;
        let adapts = params.mirostat == 0
            && params.adaptive_target >= 0.0
            && self.order.contains(&SamplerKind::AdaptiveP);
        if params.mirostat > 0 {
            truncation::temperature(params.temperature, true, &mut self.candidates);
        }
        match params.mirostat {
            0 => {}
            1 => self.mirostat.truncate_by_zipf(self.vocab, &mut self.candidates),
            _ => self.mirostat.truncate_by_surprise(&mut self.candidates),
        }
        if adapts {
            self.adaptive.transform(&mut self.candidates);
        }
        truncation::softmax(&mut self.candidates, 1.0);
        let point = self.random.unit();
        let mut sum = 0.0f64;
        let reached = self.candidates.iter().position(|candidate| {
            sum += f64::from(candidate.probability);
            point < sum
        });
        // rounding may leave the sum below the point
        let index = reached.unwrap_or(self.candidates.len() - 1);
        let TokenCandidate { id, probability, .. } = self.candidates[index];
        if params.mirostat > 0 {
            self.mirostat.observe(probability);
        }
        if adapts {
            self.adaptive.sampled(index, id);
        }
        id
    }

    #[cfg(test)]
    pub(super) fn max_surprise(&self) -> f32 {
        self.mirostat.max_surprise()
    }
}

/// Whether a candidate has a probability above 0.
fn can_be_chosen(candidate: &TokenCandidate) -> bool {
    !candidate.logit.is_nan() && candidate.logit != f32::NEG_INFINITY
}
