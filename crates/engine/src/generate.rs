//! The one prompt → text loop.

use crate::cache::Sequence;
use crate::context_shift::ContextShift;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::sampling::{LogProbability, Sampler, SamplingParams, StopStrings, log_probabilities};
use crate::step::{LogitsRequest, SeqInput};
use latent_text::{Detokenizer, Tokenizer};
use std::time::{Duration, Instant};

/// What is to be generated.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens of the answer; none: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Texts before which the answer ends.
    pub stop: Vec<String>,
    /// Report log-probabilities of this many alternatives; none: of none, not even of the chosen token.
    pub logprobs: Option<usize>,
    /// What to discard when the context is full; none: the answer ends there.
    pub shift: Option<ContextShift>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended it.
    End,
    /// A stop string came.
    StopString,
    /// It has as many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller stopped it.
    Interrupted,
}

/// A token of an answer, as it comes.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// The token.
    pub token: u32,
    /// Text that is certain now; may be empty.
    pub text: &'a str,
    /// ln of its probability, and of the likeliest ones, where asked for.
    pub logprob: Option<(f32, &'a [LogProbability])>,
}

/// A finished answer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Answer {
    /// Its tokens, the one that ended it included.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub stop: StopReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were in the cache already.
    pub cached_tokens: usize,
    /// Seconds for the prompt.
    pub prompt_seconds: f64,
    /// Seconds for the answer.
    pub generate_seconds: f64,
    /// Tokens that context shifts discarded meanwhile.
    pub discarded_tokens: usize,
}

/// What the loop tells its caller; each call returns whether to go on.
pub trait Listener {
    /// So many tokens of the prompt are done.
    fn prompt(&mut self, _done: usize, _total: usize) -> bool {
        true
    }

    /// A token of the answer.
    fn token(&mut self, _event: &Event<'_>) -> bool {
        true
    }
}

/// A conversation with a model: its cached rows and the tokens that they stand for.
#[derive(Debug, Default)]
pub struct Session {
    /// The cached rows.
    pub sequence: Sequence,
    /// The tokens of those rows. After a context shift only those before what was discarded: the rows behind it have seen other tokens, so that
    /// no later prompt may share them.
    pub tokens: Vec<u32>,
}

impl Session {
    /// Forgets what does not begin `prompt`, and at least its last token, whose logits are needed. Returns how many rows stay.
    fn keep_common(&mut self, engine: &mut Engine, prompt: &[u32]) -> usize {
        let same = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let keep = same.min(prompt.len().saturating_sub(1));
        engine.truncate(&mut self.sequence, keep);
        self.tokens.truncate(keep);
        keep
    }
}

impl Engine {
    /// Answers a prompt. What the session has cached of it is not computed again.
    ///
    /// # Errors
    /// A prompt that is empty or does not fit into the context, token ids out of range, parameters out of their range.
    pub fn generate(
        &mut self,
        session: &mut Session,
        request: &Request,
        tokenizer: &Tokenizer,
        listener: &mut dyn Listener,
    ) -> Result<Answer, EngineError> {
        let prompt = &request.prompt;
        let context = self.context();
        if prompt.is_empty() {
            return Err(EngineError::Options("the prompt has no tokens; give a text or --tokens".into()));
        }
        if prompt.len() >= context {
            return Err(self.prompt_too_long(prompt.len()));
        }
        if let Some(shift) = request.shift {
            shift.check(context)?;
        }
        let start = Instant::now();
        let cached = session.keep_common(self, prompt);
        let vocab = self.config().vocab_size;
        let mut state = GenerationState {
            sampler: Sampler::new(request.sampling.clone(), vocab, breakers(tokenizer, vocab))?,
            stops: StopStrings::new(&request.stop),
            detokenizer: Detokenizer::new(tokenizer, false),
            tokenizer,
            request,
            logits: vec![0.0; vocab],
            answer: Answer {
                tokens: Vec::new(),
                text: String::new(),
                stop: StopReason::Length,
                prompt_tokens: prompt.len(),
                cached_tokens: cached,
                prompt_seconds: 0.0,
                generate_seconds: 0.0,
                discarded_tokens: 0,
            },
        };
        prompt.iter().for_each(|token| state.sampler.accept(*token));
        let fed = self.feed(session, &prompt[cached..], &mut state.logits, &mut |done| {
            listener.prompt(cached + done, prompt.len())
        });
        state.answer.prompt_seconds = start.elapsed().as_secs_f64();
        match fed {
            Ok(()) => {}
            Err(EngineError::Stopped) => {
                state.answer.stop = StopReason::Interrupted;
                return Ok(state.answer);
            }
            Err(error) => return Err(error),
        }
        let start = Instant::now();
        self.answer(session, &mut state, listener, context)?;
        state.finish(start.elapsed(), listener);
        Ok(state.answer)
    }

    /// Runs tokens of the prompt; the logits of the last one stay in `logits`.
    fn feed(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        logits: &mut [f32],
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        let chunk = self.chunk_for(tokens.len());
        let before = session.sequence.len();
        let result = self.prefill(
            &mut session.sequence,
            tokens,
            chunk,
            LogitsRequest::Last,
            &mut |_, row| logits.copy_from_slice(row),
            progress,
        );
        let done = session.sequence.len() - before;
        session.tokens.extend_from_slice(&tokens[..done]);
        result
    }

    fn answer(
        &mut self,
        session: &mut Session,
        state: &mut GenerationState<'_>,
        listener: &mut dyn Listener,
        context: usize,
    ) -> Result<(), EngineError> {
        let most = state.request.max_tokens.unwrap_or(usize::MAX);
        while state.answer.tokens.len() < most {
            let token = state.next()?;
            if !state.show(token, listener) {
                return Ok(());
            }
            if state.answer.tokens.len() >= most {
                break;
            }
            if session.sequence.len() >= context {
                let Some(shift) = state.request.shift else {
                    state.answer.stop = StopReason::Context;
                    return Ok(());
                };
                state.answer.discarded_tokens += self.shift_session(session, shift)?;
            }
            let tokens = [token];
            let mut items =
                [SeqInput { sequence: &mut session.sequence, tokens: &tokens, wanted: LogitsRequest::Last }];
            let logits = &mut state.logits;
            let in_order = items[0].sequence.len() == session.tokens.len();
            self.step(&mut items, &mut |_, _, row| logits.copy_from_slice(row))?;
            if in_order {
                session.tokens.push(token);
            }
        }
        state.answer.stop = StopReason::Length;
        Ok(())
    }
}

/// Tokens at which DRY stops looking for a repetition: those that end a line or a clause, and control tokens.
fn breakers(tokenizer: &Tokenizer, vocab: usize) -> Vec<u32> {
    let ends = |id: &u32| {
        let piece = tokenizer.piece(*id).unwrap_or_default();
        tokenizer.is_control(*id) || piece.iter().any(|b| matches!(b, b'\n' | b':' | b'"' | b'*'))
    };
    (0..vocab as u32).filter(ends).collect()
}

/// The state of one answer.
struct GenerationState<'a> {
    sampler: Sampler,
    stops: StopStrings,
    detokenizer: Detokenizer<'a>,
    tokenizer: &'a Tokenizer,
    request: &'a Request,
    logits: Vec<f32>,
    answer: Answer,
}

impl GenerationState<'_> {
    fn next(&mut self) -> Result<u32, EngineError> {
        let token = self.sampler.sample(&self.logits)?;
        self.sampler.accept(token);
        self.answer.tokens.push(token);
        Ok(token)
    }

    /// Tells the listener of a token; whether the answer goes on.
    fn show(&mut self, token: u32, listener: &mut dyn Listener) -> bool {
        let ends = self.tokenizer.end_of_generation().contains(&token);
        let text = if ends { String::new() } else { self.detokenizer.push(token) };
        let text = self.stops.push(&text);
        self.answer.text.push_str(&text);
        let found = self.request.logprobs.map(|top| log_probabilities(&self.logits, token, top));
        let logprob = found.as_ref().map(|(own, top)| (*own, top.as_slice()));
        let goes_on = listener.token(&Event { token, text: &text, logprob });
        self.answer.stop = match (ends, self.stops.found(), goes_on) {
            (true, ..) => StopReason::End,
            (_, true, _) => StopReason::StopString,
            (.., false) => StopReason::Interrupted,
            _ => return true,
        };
        false
    }

    /// Text that was held back.
    fn finish(&mut self, time: Duration, listener: &mut dyn Listener) {
        self.answer.generate_seconds = time.as_secs_f64();
        let unfinished = self.detokenizer.finish();
        let before = self.stops.found();
        let mut text = self.stops.push(&unfinished);
        if !self.stops.found() {
            text.push_str(&self.stops.finish());
        } else if !before {
            self.answer.stop = StopReason::StopString;
        }
        self.answer.text.push_str(&text);
        if !text.is_empty()
            && let Some(token) = self.answer.tokens.last()
        {
            listener.token(&Event { token: *token, text: &text, logprob: None });
        }
    }
}
