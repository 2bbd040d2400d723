//! The one prompt → text loop.

use crate::cache::Sequence;
use crate::context_shift::ContextShift;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::Generation;
use crate::sampling::{LogProbability, SamplingParams};
use crate::step::{LogitsRequest, SeqInput};
use latent_text::Tokenizer;
use std::sync::Arc;
use std::time::Instant;

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
        tokenizer: &Arc<Tokenizer>,
        listener: &mut dyn Listener,
    ) -> Result<Answer, EngineError> {
        let prompt = &request.prompt;
        let mut generation = self.start(request, tokenizer)?;
        let start = Instant::now();
        let cached = session.keep_common(self, prompt);
        let fed = self.feed(session, &prompt[cached..], &mut generation, &mut |done| {
            listener.prompt(cached + done, prompt.len())
        });
        let prompt_seconds = start.elapsed().as_secs_f64();
        let mut discarded_tokens = 0;
        let start = Instant::now();
        match fed {
            Ok(()) => discarded_tokens = self.answer(session, &mut generation, request.shift, listener)?,
            Err(EngineError::Stopped) => generation.stop(StopReason::Interrupted),
            Err(error) => return Err(error),
        }
        let held_back = generation.finish();
        if let Some(token) = generation.tokens().last().filter(|_| !held_back.is_empty()) {
            listener.token(&Event { token: *token, text: &held_back, logprob: None });
        }
        let (tokens, text, stop) = generation.into_parts();
        Ok(Answer {
            tokens,
            text,
            stop,
            prompt_tokens: prompt.len(),
            cached_tokens: cached,
            prompt_seconds,
            generate_seconds: start.elapsed().as_secs_f64(),
            discarded_tokens,
        })
    }

    /// A generation for a request that this engine can serve. Whoever drives it feeds the prompt, and then each token that it chooses; see
    /// [`Engine::advance`].
    ///
    /// # Errors
    /// A prompt that is empty or does not fit into the context; parameters out of their range.
    pub fn start(&self, request: &Request, tokenizer: &Arc<Tokenizer>) -> Result<Generation, EngineError> {
        let (prompt, context) = (&request.prompt, self.context());
        if prompt.is_empty() {
            return Err(EngineError::Options("the prompt has no tokens; give a text or --tokens".into()));
        }
        if prompt.len() >= context {
            return Err(self.prompt_too_long(prompt.len()));
        }
        if let Some(shift) = request.shift {
            shift.check(context)?;
        }
        Generation::new(Arc::clone(tokenizer), self.config().vocab_size, request)
    }

    /// Runs tokens of the prompt; the logits of the last one stay in the generation.
    fn feed(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        generation: &mut Generation,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        let chunk = self.chunk_for(tokens.len());
        let before = session.sequence.len();
        let result = self.prefill(
            &mut session.sequence,
            tokens,
            chunk,
            LogitsRequest::Last,
            &mut |_, row| generation.take_logits(row),
            progress,
        );
        let done = session.sequence.len() - before;
        session.tokens.extend_from_slice(&tokens[..done]);
        result
    }

    /// Chooses and runs tokens until the answer ends; returns how many tokens context shifts discarded.
    fn answer(
        &mut self,
        session: &mut Session,
        generation: &mut Generation,
        shift: Option<ContextShift>,
        listener: &mut dyn Listener,
    ) -> Result<usize, EngineError> {
        let mut discarded = 0;
        // an answer of no tokens ends before the first
        while !generation.is_finished() {
            let chosen = generation.choose()?;
            let logprob = chosen.logprob.as_ref().map(|(own, top)| (*own, top.as_slice()));
            if !listener.token(&Event { token: chosen.token, text: &chosen.text, logprob }) {
                generation.interrupt();
            }
            if generation.is_finished() {
                break;
            }
            if session.sequence.len() >= self.context() {
                let Some(shift) = shift else {
                    generation.stop(StopReason::Context);
                    break;
                };
                discarded += self.shift_session(session, shift)?;
            }
            let tokens = [chosen.token];
            let in_order = session.sequence.len() == session.tokens.len();
            let sequence = &mut session.sequence;
            let mut inputs = [SeqInput { sequence, tokens: &tokens, wanted: LogitsRequest::Last }];
            self.step(&mut inputs, &mut |_, _, row| generation.take_logits(row))?.all()?;
            if in_order {
                session.tokens.push(chosen.token);
            }
        }
        Ok(discarded)
    }
}
