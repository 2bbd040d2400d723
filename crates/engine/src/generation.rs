//! One answer as a state machine: logits in, tokens and text out. It knows no engine, so that a server can drive many of them.

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
    /// `tokens` are the prompt and what was chosen so far; `logits` has one element per token of the vocabulary. A token whose logit becomes −∞
    /// cannot be chosen.
    fn process(&mut self, tokens: &[u32], logits: &mut [f32]);

    /// Samples the next token in place of the request's sampling parameters, which `None` uses. `logits` are those that
    /// [`process`](Self::process) of all processors has left, −∞ for tokens that must not follow. The answer fails if such a token is returned.
    fn sample(&mut self, tokens: &[u32], logits: &[f32]) -> Option<u32> {
        let _ = (tokens, logits);
        None
    }

    /// Is told at once when a token was chosen, the last of `tokens`, and can prepare the next call of [`process`](Self::process) while the model
    /// runs.
    fn accepted(&mut self, tokens: &[u32]) {
        let _ = tokens;
    }

    /// Whether the next call of [`process`](Self::process) returns without waiting, after waiting for that here up to `limit`. In a batch, an answer
    /// whose processor is not ready skips the step, and the others continue.
    fn is_ready(&mut self, limit: Duration) -> bool {
        let _ = limit;
        true
    }

    /// Why it cannot go on, once it cannot: the answer then fails with this message.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// The state of one answer: sampler, stop strings, detokenizer. It owns what it needs, and can move between threads.
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
    /// Those of them that rows of the KV cache stand for, once a context shift has discarded others.
    rest: Option<Vec<u32>>,
    prompt_len: usize,
    max_tokens: usize,
    /// Tokens of the answer that the context has room for.
    room: usize,
    min_tokens: usize,
    /// Tokens that end the answer: the model's own, then the request's.
    ends: Vec<u32>,
    /// How many of them are never chosen.
    banned_ends: usize,
    bad_words: Vec<Vec<u32>>,
    /// Tokens that must not be chosen next; kept so that nothing is allocated per token.
    banned: Vec<u32>,
    indent: IndentLimit,
    max_time: Option<Duration>,
    /// When the first token was chosen.
    began: Option<Instant>,
    logprobs: Option<usize>,
    sampled_logprobs: bool,
    vocab: usize,
    logits: KeptLogits,
    /// Whether the next token is to be chosen from these logits once the processors are ready.
    late: bool,
    /// Tokens whose logits have been taken or are not needed: those of `rest` or `context` before it are in the KV cache.
    fed: usize,
    text: String,
    stop: Option<StopReason>,
    /// Whether it has ended before its first token.
    given_up: bool,
    drafts: DraftCount,
    /// What drafts are looked up from, unless none are wanted.
    lookup: Option<LookupDrafts>,
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenToken {
    /// The token.
    pub token: u32,
    /// Text that is certain now; may be empty.
    pub text: String,
    /// Whether it ends the answer, so that it has no text.
    pub ends: bool,
    /// ln of its probability under the model, and the likeliest tokens with theirs, where asked for.
    pub logprob: Option<(f32, Vec<LogProbability>)>,
}

impl Generation {
    /// The answer to a request, before its prompt has run. `vocab` is the length of the model's logits.
    ///
    /// # Errors
    /// Sampling parameters out of their range.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        vocab: usize,
        request: &Request,
    ) -> Result<Generation, EngineError> {
        let mut sampler = Sampler::of_tokenizer(request.sampling.clone(), vocab, &tokenizer)?;
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
            rest: None,
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
            stop: (max_tokens == 0).then_some(StopReason::Length),
            given_up: false,
            drafts: DraftCount::default(),
            lookup: (!request.no_drafts).then(LookupDrafts::default),
        })
    }

    /// Ends the answer where prompt and answer have `context` tokens.
    pub(crate) fn limit_to_context(&mut self, context: usize) {
        self.room = context.saturating_sub(self.prompt_len);
    }

    /// Adds a processor, after those that are there.
    pub fn add_processor(&mut self, processor: Box<dyn LogitsProcessor>) {
        self.processors.push(processor);
    }

    /// Tokens that have to run before the next one can be chosen: the prompt first, then each chosen token.
    pub fn pending(&self) -> &[u32] {
        &self.rows()[self.fed..]
    }

    /// Counts the first `tokens` pending tokens as run; more than those that are pending count as all of them.
    pub fn mark_run(&mut self, tokens: usize) {
        self.fed = self.fed.saturating_add(tokens).min(self.rows().len());
    }

    /// The tokens that have run and whose rows are in the KV cache.
    pub(crate) fn ran(&self) -> &[u32] {
        &self.rows()[..self.fed]
    }

    /// The tokens that rows of the KV cache stand for, or will: the prompt and the chosen tokens, without what a context shift has discarded.
    pub(crate) fn rows(&self) -> &[u32] {
        self.rest.as_deref().unwrap_or(&self.context)
    }

    /// Forgets tokens of [`rows`](Self::rows) that have run. They remain part of the answer.
    pub(crate) fn discard(&mut self, discarded: Range<usize>) {
        self.fed -= discarded.len();
        let rest = self.rest.get_or_insert_with(|| self.context.clone());
        rest.drain(discarded);
    }

    /// Sets the number of [`rows`](Self::rows) in the KV cache. The others are pending, including chosen
    /// ones. At least one stays pending, since its logits are needed.
    pub(crate) fn resume_after(&mut self, rows: usize) {
        self.fed = rows.min(self.rows().len().saturating_sub(1));
        self.late = false;
    }

    /// Whether the next token is to be chosen from logits of an earlier step.
    pub(crate) fn is_late(&self) -> bool {
        self.late && !self.is_finished()
    }

    /// Copies the logits of the last token that ran, which may be only the [largest](Self::enough).
    pub(crate) fn keep_logits(&mut self, logits: Logits<'_>) {
        self.logits.keep(logits);
    }

    /// How many of the largest logits of a row are enough to choose from once `accepted` more tokens are chosen; 0: all of it is needed.
    pub(crate) fn enough(&self, accepted: usize) -> usize {
        match self.processors.is_empty() && self.logprobs.is_none() {
            true => self.sampler.enough(accepted, self.ends_banned() + self.bad_words.len()),
            false => 0,
        }
    }

    /// How many of the tokens that end the answer are banned at this step.
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
        self.banned.sort_unstable();
    }

    /// Chooses the next token from the logits that were taken last, and decides whether the answer ends with it.
    ///
    /// # Errors
    /// When no token can be chosen; [`EngineError::Panicked`] where a processor or the sampling panics, which ends the answer.
    pub fn sample(&mut self) -> Result<ChosenToken, EngineError> {
        caught(|| self.sample_next()).unwrap_or_else(|panicked| {
            self.interrupt();
            Err(panicked)
        })
    }

    /// The same if the processors are ready, for which it waits until `until`. Otherwise the answer [is late](Self::is_late).
    pub(crate) fn sample_until(&mut self, until: Instant) -> Result<Option<ChosenToken>, EngineError> {
        if self.is_ready(until.saturating_duration_since(Instant::now())) {
            return self.sample().map(Some);
        }
        self.late = true;
        Ok(None)
    }

    /// Whether the processors are ready, for which it waits up to `limit`. One that panics is: it ends the answer when it is called.
    pub(crate) fn is_ready(&mut self, limit: Duration) -> bool {
        let (until, processors) = (Instant::now() + limit, &mut self.processors);
        let ready = caught(|| {
            processors
                .iter_mut()
                .all(|processor| processor.is_ready(until.saturating_duration_since(Instant::now())))
        });
        ready.unwrap_or(true)
    }

    fn sample_next(&mut self) -> Result<ChosenToken, EngineError> {
        self.late = false;
        for processor in &mut self.processors {
            let Some(logits) = self.logits.whole_mut() else {
                let problem = "a processor was added after the logits that it had to change were taken";
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
            // the sampler has no candidates of a token that a processor sampled
            (Some(top), Some(_)) if self.sampled_logprobs && by_processor.is_none() => {
                Some(self.sampler.sampled_probabilities(token, top))
            }
            (Some(top), Some(logits)) => Some(log_probabilities(logits, token, top)),
            _ => None,
        };
        self.sampler.accept(token);
        self.context.push(token);
        self.rest.iter_mut().for_each(|rest| rest.push(token));
        self.processors.iter_mut().for_each(|processor| processor.accepted(&self.context));
        let ends = self.ends.contains(&token);
        let text = if ends { String::new() } else { self.detokenizer.push(token) };
        let text = self.indent.push(text);
        let out_of_time = self.is_out_of_time(&text);
        // stop strings count from the minimum number of tokens on
        let unchecked = self.tokens().len() <= self.min_tokens;
        let text = if unchecked { text } else { self.stops.push(&text) };
        self.text.push_str(&text);
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

    /// The token of the first processor that samples. Tokens that are banned have −∞ meanwhile.
    fn sample_by_processor(&mut self) -> Result<Option<u32>, EngineError> {
        if self.processors.is_empty() {
            return Ok(None);
        }
        let Some(logits) = self.logits.whole_mut() else { return Ok(None) };
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
        // in reverse, since a token may be banned twice
        kept.into_iter().rev().for_each(|(token, logit)| logits[token as usize] = logit);
        match refused {
            None => Ok(sampled),
            Some(token) => Err(EngineError::Sampling(format!(
                "the sampler of this request returned token {token}, which is forbidden here or outside the vocabulary of {}",
                self.vocab
            ))),
        }
    }

    /// Whether the answer's time is over with a text that ends a line.
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

    /// Tokens that followed the same words before, at most `most` and as many as are worth their rows, and the cost of their step.
    /// `cost(n)` is the cost of `n` more rows, in steps without drafts. `None` for an answer that wants no drafts.
    pub(crate) fn look_up_drafts(
        &mut self,
        most: usize,
        cost: impl Fn(usize) -> f64,
    ) -> (Vec<u32>, Option<f64>) {
        let rows = self.rest.as_deref().unwrap_or(&self.context);
        let Some(lookup) = &mut self.lookup else { return (Vec::new(), None) };
        let proposed = lookup.propose(rows, most);
        let count = lookup.worth(proposed.len(), &cost);
        (proposed[..count].to_vec(), Some(if count > 0 { cost(count) } else { 1.0 }))
    }

    /// Counts a step of drafts that were looked up, `accepted` of `drafted`.
    pub(crate) fn count_looked_up(&mut self, drafted: usize, accepted: usize, cost: f64) {
        if let Some(lookup) = &mut self.lookup {
            lookup.count(drafted, accepted, cost);
        }
    }

    /// The drafts that were verified so far.
    pub fn drafts(&self) -> DraftCount {
        self.drafts
    }

    /// Ends the answer for a reason from outside, whatever reason it had.
    pub fn stop(&mut self, reason: StopReason) {
        self.stop = Some(reason);
    }

    /// Ends the answer without a token: one that was chosen is forgotten.
    pub(crate) fn give_up(&mut self) {
        self.context.truncate(self.prompt_len);
        self.text.clear();
        self.stops = StopStrings::new(&[]);
        self.given_up = true;
        self.stop = Some(StopReason::Length);
    }

    /// Ends the answer on its reader's wish; an answer that the model or a stop string has ended keeps that reason.
    pub(crate) fn interrupt(&mut self) {
        if !matches!(self.stop, Some(StopReason::End | StopReason::StopString)) {
            self.stop = Some(StopReason::Interrupted);
        }
    }

    /// Tokens that the answer may still have.
    pub(crate) fn left(&self) -> usize {
        self.max_tokens.min(self.room).saturating_sub(self.tokens().len())
    }

    /// Whether the answer has ended.
    pub fn is_finished(&self) -> bool {
        self.stop.is_some()
    }

    /// Why it ended, once it has.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop
    }

    /// The chosen tokens, the one that ended the answer included.
    pub fn tokens(&self) -> &[u32] {
        &self.context[self.prompt_len..]
    }

    /// The text so far, without what may still become a stop string or a whole character.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Text that was held back, once no more tokens come.
    pub fn finish(&mut self) -> String {
        if self.given_up {
            return String::new();
        }
        let unfinished = self.indent.push(self.detokenizer.finish());
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
