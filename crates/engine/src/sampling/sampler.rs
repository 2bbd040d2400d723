//! The sampler chain.

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

/// Chooses the tokens of one answer.
pub struct Sampler {
    params: SamplingParams,
    order: Vec<SamplerKind>,
    greedy: bool,
    vocab: usize,
    random: Random,
    /// The tokens of the prompt and the answer.
    seen: Vec<u32>,
    candidates: Vec<TokenCandidate>,
    scratch: truncation::TypicalScratch,
    dry: dry::DrySampler,
    penalties: penalties::Penalties,
    mirostat: Mirostat,
    adaptive: AdaptiveState,
    /// For the infill sampler.
    tokenizer: Option<Arc<Tokenizer>>,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens. `breakers` are the tokens that end DRY's
    /// search for a repetition.
    ///
    /// # Errors
    /// If a parameter is out of range.
    pub fn new(params: SamplingParams, vocab: usize, breakers: Vec<u32>) -> Result<Sampler, EngineError> {
        Sampler::with_breakers(params, vocab, Breakers::of_tokens(breakers), None)
    }

    /// A sampler for a tokenizer, with DRY's sequence breakers from its tokens.
    ///
    /// # Errors
    /// If a parameter is out of range.
    pub fn of_tokenizer(
        params: SamplingParams,
        vocab: usize,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Sampler, EngineError> {
        // Finding the breakers reads the whole vocabulary, so it is skipped if DRY is off.
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
        // Sorted for the binary search in `sample_of`.
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

    /// Records a token of the prompt or the answer, for penalties.
    pub fn accept(&mut self, token: u32) {
        self.adaptive.accept(token);
        self.seen.push(token);
    }

    /// Chooses the next token, which the caller then [accepts](Self::accept).
    ///
    /// # Errors
    /// If every logit is NaN or −∞.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, EngineError> {
        self.sample_of(Logits::Whole(logits), &[])
    }

    /// The log-probability with which the last token was sampled, after all samplers, and those of
    /// the `top` likeliest tokens. Tokens that a sampler has dropped are omitted.
    pub(crate) fn sampled_probabilities(&self, token: u32, top: usize) -> (f32, Vec<LogProbability>) {
        let mut left: Vec<&TokenCandidate> = self.candidates.iter().filter(|c| c.probability > 0.0).collect();
        left.sort_unstable_by(|a, b| b.probability.total_cmp(&a.probability).then(a.id.cmp(&b.id)));
        let own = left.iter().find(|c| c.id == token).map_or(0.0, |c| c.probability);
        left.truncate(top);
        let list = left.into_iter().map(|c| LogProbability { id: c.id, logprob: c.probability.ln() });
        (own.ln(), list.collect())
    }

    /// How many of the largest logits give the same choice as the whole row, after `accepted` more
    /// tokens and with `banned` banned ones. 0 if the whole row is needed.
    pub(crate) fn enough(&self, accepted: usize, banned: usize) -> usize {
        let params = &self.params;
        // A raised logit may come from anywhere in the row.
        let raises = params.logit_bias.iter().any(|(_, bias)| *bias > 0.0) || !penalties::only_lower(params);
        let reads_all = params.dry_multiplier != 0.0 || params.allowed_tokens.is_some();
        if raises || reads_all || !self.begins_with_top_k() {
            return 0;
        }
        let kept = match params.top_k {
            _ if self.greedy => 1,
            0 => return 0,
            // With exactly k candidates, top-k would not sort, and the draw depends on the order.
            k => k.saturating_add(1),
        };
        // Each lowered or banned token may move a token up that was not among the k largest.
        let lowered = penalties::window(params).min(self.seen.len().saturating_add(accepted));
        let lowered = lowered.saturating_add(params.logit_bias.len()).saturating_add(banned);
        match kept.saturating_add(lowered) {
            enough if enough <= MAX_TOP_LOGITS => enough,
            _ => 0,
        }
    }

    /// Whether top-k, or the greedy choice, is the first sampler that is on after penalties. Others
    /// would need the whole row.
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

    /// Chooses the next token from a whole row, or from its [`enough`](Self::enough) largest
    /// logits. Tokens in `banned`, which is in ascending order, are chosen only if no other token
    /// can be.
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
            let problem = "no token can be sampled: every logit is NaN or −∞ (the model is damaged, or all \
                           tokens are banned)";
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

    /// Runs the samplers in their order.
    fn apply_chain(&mut self) {
        let (params, candidates) = (&self.params, &mut self.candidates);
        // Truncation cannot change the greedy choice, and Mirostat replaces it.
        let only_penalties = self.greedy || params.mirostat > 0;
        // Penalties look candidates up by id, which is a binary search over ascending ids.
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
            // The row, biases and penalties may have left NaN or −∞, and the samplers below expect
            // numbers.
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
                        // The entropy of one candidate is 0 / 0 after normalization.
                        true if candidates.len() < 2 => continue,
                        true => truncation::dynamic_temperature(params, candidates),
                        false => params.temperature,
                    };
                    // A later repetition penalty depends on the sign of logits, so they must not be
                    // shifted.
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

    /// Draws one of the remaining candidates by their probabilities.
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
        // Rounding may leave the sum of all probabilities below the point.
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
