//! One answer as a state machine: logits in, tokens and text out. It does not depend on the engine,
//! so that a scheduler can drive many of them.

use crate::caught::caught;
use crate::draft_kind::DraftCount;
use crate::error::EngineError;
use crate::indent::IndentLimit;
use crate::logits_taker::KeptLogits;
use crate::lookup::LookupDrafts;
use crate::request::{Request, StopReason};
use crate::sampling::{LogProbability, Sampler, StopStrings, log_probabilities};
use latent_backend::{Instant, Logits};
use latent_text::{Detokenizer, Tokenizer};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Changes logits before a token is chosen: a grammar, a watermark, a ban of tokens.
pub trait LogitsProcessor: Send {
    /// Changes `logits`, which has one element per token of the vocabulary. `tokens` are the prompt
    /// and the tokens chosen so far. A token whose logit becomes −∞ cannot be chosen.
    fn process(&mut self, tokens: &[u32], logits: &mut [f32]);

    /// Samples the next token instead of the request's sampling parameters. Return `None` to use
    /// these. `logits` have passed through [`process`](Self::process) of all processors, and are −∞
    /// for forbidden tokens. The answer fails if a forbidden token is returned.
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> Option<u32> {
        let _ = (tokens, logits);
        None
    }

    /// Called as soon as a token was chosen, the last of `tokens`. The processor can then prepare
    /// the next call of [`process`](Self::process) while the model runs.
    fn accepted(&mut self, tokens: &[u32]) {
        let _ = tokens;
    }

    /// Waits up to `limit` until the next call of [`process`](Self::process) would return without
    /// waiting, and returns whether it would. In a batch, an answer whose processor is not ready
    /// skips the step, and the others continue.
    fn is_ready(&mut self, limit: Duration) -> bool {
        let _ = limit;
        true
    }

    /// The reason why the processor cannot continue, if so. The answer fails with this message.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// The state of one answer: sampler, stop strings, detokenizer. It owns its data and can move
/// between threads.
///
/// ```
/// fn send<T: Send + 'static>() {}
/// send::<latent_engine::Generation>();
/// ```
pub struct Generation {
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    sampler: Sampler,
    stops: StopStrings,
    processors: Vec<Box<dyn LogitsProcessor>>,
    /// The prompt and all chosen tokens.
    context: Vec<u32>,
    /// After a context shift: the tokens of `context` that it has not discarded.
    shifted_rows: Option<Vec<u32>>,
    prompt_len: usize,
    max_tokens: usize,
    /// Maximum number of answer tokens that fit into the context.
    room: usize,
    min_tokens: usize,
    /// Tokens that end the answer: the model's own, then the request's.
    ends: Vec<u32>,
    /// The first `banned_ends` of `ends` are never chosen.
    banned_ends: usize,
    bad_words: Vec<Vec<u32>>,
    /// Tokens that must not be chosen next. A field, so that no memory is allocated per token.
    banned: Vec<u32>,
    indent: IndentLimit,
    max_time: Option<Duration>,
    /// When the first token was chosen.
    began: Option<Instant>,
    logprobs: Option<usize>,
    sampled_logprobs: bool,
    vocab: usize,
    logits: KeptLogits,
    /// Whether the next token is yet to be chosen from `logits`, once the processors are ready.
    late: bool,
    /// Number of [`rows`](Self::rows) that have run.
    fed: usize,
    text: String,
    stop: Option<StopReason>,
    /// Whether the answer has ended before its first token.
    given_up: bool,
    drafts: DraftCount,
    /// The n-gram index for drafts. `None` if the request wants no drafts.
    lookup: Option<LookupDrafts>,
    /// Maximum number of drafts per step.
    max_drafts: usize,
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// The token id.
    pub token: u32,
    /// The text that is complete with this token. May be empty.
    pub text: String,
    /// Whether the token ends the answer. It has no text then.
    pub ends: bool,
    /// The natural logarithm of its probability under the model, and those of the likeliest tokens,
    /// if the request asks for them.
    pub logprob: Option<(f32, Vec<LogProbability>)>,
}

impl Generation {
    /// The answer to a request, before its prompt has run. `vocab` is the length of the model's
    /// logits.
    ///
    /// # Errors
    /// Sampling parameters out of their range.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        vocab: usize,
        request: &Request,
    ) -> Result<Generation, EngineError> {
        let mut sampler = Sampler::of_tokenizer(request.sampling.clone(), vocab, &tokenizer)?;
        // Penalties and DRY also count the tokens of the prompt.
        request.prompt.iter().for_each(|token| sampler.accept(*token));
        let max_tokens = request.max_tokens.unwrap_or(usize::MAX);
        let ends = [tokenizer.end_of_generation(), &request.stop_tokens].concat();
        let banned_ends = if request.ignore_eos { tokenizer.end_of_generation().len() } else { 0 };
        let bad_words = request.bad_words.iter().filter(|word| !word.is_empty()).cloned().collect();
        Ok(Generation {
            detokenizer: Detokenizer::new(tokenizer, false),
            sampler,
            stops: StopStrings::new(&request.stop),
            processors: Vec::new(),
            context: request.prompt.clone(),
            shifted_rows: None,
            prompt_len: request.prompt.len(),
            max_tokens,
            room: usize::MAX,
            min_tokens: request.min_tokens,
            ends,
            banned_ends,
            bad_words,
            banned: Vec::new(),
            indent: IndentLimit::new(request.min_indent),
            max_time: request.max_time,
            began: None,
            logprobs: request.logprobs,
            sampled_logprobs: request.sampled_logprobs,
            vocab,
            logits: KeptLogits::default(),
            late: false,
            fed: 0,
            text: String::new(),
            // No token is ever chosen, so the limit must end the answer here.
            stop: (max_tokens == 0).then_some(StopReason::Length),
            given_up: false,
            drafts: DraftCount::default(),
            lookup: request.wants_drafts().then(LookupDrafts::default),
            max_drafts: request.max_drafts.unwrap_or(usize::MAX),
        })
    }

    /// Ends the answer when prompt and answer have `context` tokens together.
    pub(crate) fn limit_to_context(&mut self, context: usize) {
        self.room = context.saturating_sub(self.prompt_len);
    }

    /// Adds a processor, which is called after the existing ones.
    pub fn add_processor(&mut self, processor: Box<dyn LogitsProcessor>) {
        self.processors.push(processor);
    }

    /// Tokens that must run before the next one can be chosen: the prompt first, then each chosen
    /// token.
    pub fn pending(&self) -> &[u32] {
        &self.rows()[self.fed..]
    }

    /// Counts the first `tokens` pending tokens, or all if there are fewer, as run.
    pub fn mark_run(&mut self, tokens: usize) {
        self.fed = self.fed.saturating_add(tokens).min(self.rows().len());
    }

    /// The tokens that have run and whose rows are in the KV cache.
    pub(crate) fn ran(&self) -> &[u32] {
        &self.rows()[..self.fed]
    }

    /// The tokens whose rows are or will be in the KV cache: the prompt and the chosen tokens,
    /// without those that a context shift has discarded.
    pub(crate) fn rows(&self) -> &[u32] {
        self.shifted_rows.as_deref().unwrap_or(&self.context)
    }

    /// Removes tokens that have run from [`rows`](Self::rows). They remain part of the answer.
    pub(crate) fn discard(&mut self, discarded: Range<usize>) {
        // Only tokens that have run are discarded, and those were counted.
        self.fed -= discarded.len();
        // `context` keeps the discarded tokens: they are part of the answer, and penalties count
        // them.
        let rows = self.shifted_rows.get_or_insert_with(|| self.context.clone());
        rows.drain(discarded);
    }

    /// Sets the number of [`rows`](Self::rows) in the KV cache. The others are pending, including
    /// chosen ones. At least one stays pending, since its logits are needed.
    pub(crate) fn resume_after(&mut self, rows: usize) {
        self.fed = rows.min(self.rows().len().saturating_sub(1));
        self.late = false;
    }

    /// Whether the next token is yet to be chosen from logits of an earlier step.
    pub(crate) fn is_late(&self) -> bool {
        self.late && !self.is_finished()
    }

    /// Copies the logits of the last token that ran, which may be only the [largest](Self::enough).
    pub(crate) fn keep_logits(&mut self, logits: Logits<'_>) {
        self.logits.keep(logits);
    }

    /// How many of the largest logits of a row suffice to choose a token once `accepted` more
    /// tokens are chosen. 0: all logits are needed.
    pub(crate) fn enough(&self, accepted: usize) -> usize {
        // Processors may change any logit, and probabilities need the sum over all of them. Banned
        // tokens may be among the largest, so as many more are needed.
        match self.processors.is_empty() && self.logprobs.is_none() {
            true => self.sampler.enough(accepted, self.ends_banned() + self.bad_words.len()),
            false => 0,
        }
    }

    /// The number of elements of `ends` that are banned now.
    fn ends_banned(&self) -> usize {
        if self.tokens().len() < self.min_tokens { self.ends.len() } else { self.banned_ends }
    }

    /// Finds the tokens that must not be chosen next, in ascending order.
    fn find_banned(&mut self) {
        self.banned.clear();
        let ends = self.ends_banned();
        self.banned.extend_from_slice(&self.ends[..ends]);
        let chosen = &self.context[self.prompt_len..];
        for word in &self.bad_words {
            if let Some((last, before)) = word.split_last()
                && chosen.ends_with(before)
            {
                self.banned.push(*last);
            }
        }
        // `sample_of` searches the list by bisection.
        self.banned.sort_unstable();
    }

    /// Chooses the next token from the logits of the last row, and decides whether the answer ends
    /// with it.
    ///
    /// # Errors
    /// When no token can be chosen. [`EngineError::Panicked`] if a processor or the sampler panics,
    /// which ends the answer.
    pub fn sample(&mut self) -> Result<ChosenToken, EngineError> {
        caught(|| self.sample_next()).unwrap_or_else(|panicked| {
            self.interrupt();
            Err(panicked)
        })
    }

    /// [`sample`](Self::sample) if the processors are ready before `until`. Otherwise the answer
    /// [is late](Self::is_late).
    pub(crate) fn sample_until(&mut self, until: Instant) -> Result<Option<ChosenToken>, EngineError> {
        if self.is_ready(until.saturating_duration_since(Instant::now())) {
            return self.sample().map(Some);
        }
        self.late = true;
        Ok(None)
    }

    /// Waits up to `limit` until the processors are ready. Returns whether they are.
    pub(crate) fn is_ready(&mut self, limit: Duration) -> bool {
        let (until, processors) = (Instant::now() + limit, &mut self.processors);
        let ready = caught(|| {
            processors
                .iter_mut()
                .all(|processor| processor.is_ready(until.saturating_duration_since(Instant::now())))
        });
        // A processor that panics counts as ready, so that the answer does not wait forever. Its
        // next call ends the answer with the error.
        ready.unwrap_or(true)
    }

    fn sample_next(&mut self) -> Result<ChosenToken, EngineError> {
        self.late = false;
        for processor in &mut self.processors {
            // Without processors, a step may return only the largest logits of a row (`enough`).
            let Some(logits) = self.logits.whole_mut() else {
                let problem = "a logits processor was added after the logits had been taken";
                return Err(EngineError::Sampling(problem.into()));
            };
            processor.process(&self.context, logits);
            if let Some(problem) = processor.failure() {
                return Err(EngineError::Constraint(problem));
            }
        }
        self.find_banned();
        let by_processor = self.sample_by_processor()?;
        let token = match by_processor {
            Some(token) => token,
            None => self.sampler.sample_of(self.logits.logits(), &self.banned)?,
        };
        let logprob = match (self.logprobs, self.logits.whole_mut()) {
            // The sampler has candidates only for tokens that it has sampled itself.
            (Some(top), Some(_)) if self.sampled_logprobs && by_processor.is_none() => {
                Some(self.sampler.sampled_probabilities(token, top))
            }
            (Some(top), Some(logits)) => Some(log_probabilities(logits, token, top)),
            _ => None,
        };
        self.sampler.accept(token);
        self.context.push(token);
        self.shifted_rows.iter_mut().for_each(|rows| rows.push(token));
        // As early as possible: a grammar computes its next mask while the model runs.
        self.processors.iter_mut().for_each(|processor| processor.accepted(&self.context));
        // An end token is never shown, even if it has a text.
        let ends = self.ends.contains(&token);
        let text = if ends { String::new() } else { self.detokenizer.push(token) };
        let text = self.indent.push(text);
        let out_of_time = self.is_out_of_time(&text);
        // Stop strings within the first `min_tokens` tokens do not end the answer.
        let unchecked = self.tokens().len() <= self.min_tokens;
        let text = if unchecked { text } else { self.stops.push(&text) };
        self.text.push_str(&text);
        // If several reasons apply, an end token or a stop string comes first: it means that the
        // answer is complete, and `Length` that it was cut.
        self.stop = match (ends, self.stops.found()) {
            (true, _) => Some(StopReason::End),
            (_, true) => Some(StopReason::StopString),
            _ if self.indent.is_broken() || out_of_time => Some(StopReason::Length),
            _ if self.tokens().len() >= self.max_tokens => Some(StopReason::Length),
            _ if self.tokens().len() >= self.room => Some(StopReason::Context),
            _ => None,
        };
        Ok(ChosenToken { token, text, ends, logprob })
    }

    /// The token of the first processor that samples.
    fn sample_by_processor(&mut self) -> Result<Option<u32>, EngineError> {
        if self.processors.is_empty() {
            return Ok(None);
        }
        let Some(logits) = self.logits.whole_mut() else { return Ok(None) };
        // Processors see −∞ for banned tokens. The logits are restored below, since probabilities
        // are computed from them afterwards.
        let mut kept = Vec::with_capacity(self.banned.len());
        for token in &self.banned {
            if let Some(logit) = logits.get_mut(*token as usize) {
                kept.push((*token, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        }
        let context = &self.context;
        let sampled = self.processors.iter_mut().find_map(|processor| processor.sample(context, logits));
        let allowed = |token: u32| logits.get(token as usize).is_some_and(|logit| *logit > f32::NEG_INFINITY);
        let refused = sampled.filter(|token| !allowed(*token));
        // In reverse order: a token may be banned twice, and its second entry holds −∞.
        kept.into_iter().rev().for_each(|(token, logit)| logits[token as usize] = logit);
        match refused {
            None => Ok(sampled),
            Some(token) => Err(EngineError::Sampling(format!(
                "the sampler of this request returned token {token}, which is not allowed here or outside \
                 the vocabulary of {} tokens",
                self.vocab
            ))),
        }
    }

    /// Whether the time limit, counted from the first token, has passed and `text` ends a line
    /// (`t_max_predict_ms` of llama-server).
    fn is_out_of_time(&mut self, text: &str) -> bool {
        let Some(limit) = self.max_time else { return false };
        match self.began {
            None => {
                self.began = Some(Instant::now());
                false
            }
            Some(began) => text.contains('\n') && began.elapsed() >= limit,
        }
    }

    /// Counts a draft that was verified, the first of its step or a further one.
    pub(crate) fn count_draft(&mut self, first: bool, accepted: bool) {
        self.drafts.steps += usize::from(first);
        self.drafts.drafted += 1;
        self.drafts.accepted += usize::from(accepted);
    }

    /// Drafts by n-gram lookup, at most `most` and as many as are worth their rows, and the cost of
    /// their step. `cost(n)` is the cost of a step with `n` draft rows, relative to a step without
    /// drafts. The cost is `None` for an answer that wants no drafts.
    pub(crate) fn look_up_drafts(
        &mut self,
        most: usize,
        cost: impl Fn(usize) -> f64,
    ) -> (Vec<u32>, Option<f64>) {
        let rows = self.shifted_rows.as_deref().unwrap_or(&self.context);
        let Some(lookup) = &mut self.lookup else { return (Vec::new(), None) };
        let proposed = lookup.propose(rows, most.min(self.max_drafts));
        let count = lookup.worth(proposed.len(), &cost);
        (proposed[..count].to_vec(), Some(if count > 0 { cost(count) } else { 1.0 }))
    }

    /// Counts a step in which `accepted` of `drafted` looked-up drafts were accepted.
    pub(crate) fn count_looked_up(&mut self, drafted: usize, accepted: usize, cost: f64) {
        if let Some(lookup) = &mut self.lookup {
            lookup.count(drafted, accepted, cost);
        }
    }

    /// The drafts that were verified so far.
    pub fn drafts(&self) -> DraftCount {
        self.drafts
    }

    /// Ends the answer with `reason`, which replaces an earlier reason.
    pub fn stop(&mut self, reason: StopReason) {
        self.stop = Some(reason);
    }

    /// Ends the answer without a token. A token that was chosen is discarded.
    pub(crate) fn give_up(&mut self) {
        self.context.truncate(self.prompt_len);
        self.text.clear();
        // Drops text that was held back as the possible start of a stop string.
        self.stops = StopStrings::new(&[]);
        self.given_up = true;
        self.stop = Some(StopReason::Length);
    }

    /// Ends the answer because the caller does not want more. An answer that an end token or a stop
    /// string has ended keeps that reason.
    pub(crate) fn interrupt(&mut self) {
        if !matches!(self.stop, Some(StopReason::End | StopReason::StopString)) {
            self.stop = Some(StopReason::Interrupted);
        }
    }

    /// Maximum number of tokens that the answer may still get.
    pub(crate) fn left(&self) -> usize {
        self.max_tokens.min(self.room).saturating_sub(self.tokens().len())
    }

    /// Whether the answer has ended.
    pub fn is_finished(&self) -> bool {
        self.stop.is_some()
    }

    /// Why the answer ended. `None` while it continues.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop
    }

    /// The chosen tokens, including the one that ended the answer.
    pub fn tokens(&self) -> &[u32] {
        &self.context[self.prompt_len..]
    }

    /// The text so far, without an end that may still become a stop string or a whole character.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text that was held back. Call it once, after the last token.
    pub fn finish(&mut self) -> String {
        if self.given_up {
            return String::new();
        }
        let unfinished = self.indent.push(self.detokenizer.finish());
        // The last bytes may complete a stop string.
        let before = self.stops.found();
        let mut text = self.stops.push(&unfinished);
        if !self.stops.found() {
            text.push_str(&self.stops.finish());
        } else if !before {
            self.stop = Some(StopReason::StopString);
        }
        self.text.push_str(&text);
        text
    }

    /// Tokens, text and reason of the answer.
    pub(crate) fn into_parts(self) -> (Vec<u32>, String, StopReason) {
        let tokens = self.context[self.prompt_len..].to_vec();
        (tokens, self.text, self.stop.unwrap_or(StopReason::Interrupted))
    }
}
