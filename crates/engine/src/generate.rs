//! The loop from a prompt to text.

use crate::advance::{AnswerProgress, GenerationTaker, RunningAnswer};
use crate::context_shift::ContextShift;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::{ChosenToken, Generation, LogitsProcessor};
use crate::request::{Answer, Listener, Request, StopReason, TokenEvent};
use crate::session::Session;
use crate::step::LogitsRequest;
use latent_backend::{CancelToken, Instant};
use latent_text::Tokenizer;
use latent_types::Setting;
use std::sync::Arc;

/// An engine whose steps are cancelled by the token of an answer. Restores the engine's own token
/// when dropped, also by a panic of the answer's listener.
struct CancellableEngine<'e> {
    engine: &'e mut Engine,
    own: CancelToken,
}

impl CancellableEngine<'_> {
    fn new(engine: &mut Engine, cancel: CancelToken) -> CancellableEngine<'_> {
        let own = engine.set_cancel_token(cancel);
        CancellableEngine { engine, own }
    }
}

impl Drop for CancellableEngine<'_> {
    fn drop(&mut self) {
        self.engine.set_cancel_token(std::mem::take(&mut self.own));
    }
}

/// Calls a listener with chosen tokens. If it ends the answer, it still gets the other tokens of
/// the same step, which are part of the answer.
fn tell(chosen: &[ChosenToken], generation: &mut Generation, listener: &mut dyn Listener) {
    for chosen in chosen {
        let logprob = chosen.logprob.as_ref().map(|(own, top)| (*own, top.as_slice()));
        if !listener.token(&TokenEvent { token: chosen.token, text: &chosen.text, logprob }) {
            generation.interrupt();
        }
    }
}

impl Engine {
    /// Answers a prompt. Rows that the session has cached are not computed again.
    ///
    /// # Errors
    /// If the prompt is empty or does not fit into the context, or a token id or a parameter is out
    /// of range.
    pub fn generate(
        &mut self,
        session: &mut Session,
        request: &Request,
        tokenizer: &Arc<Tokenizer>,
        listener: &mut dyn Listener,
    ) -> Result<Answer, EngineError> {
        self.generate_with(session, request, tokenizer, Vec::new(), listener)
    }

    /// [`generate`](Self::generate) with logits processors, such as a grammar.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate). Also if a processor cannot continue.
    pub fn generate_with(
        &mut self,
        session: &mut Session,
        request: &Request,
        tokenizer: &Arc<Tokenizer>,
        processors: Vec<Box<dyn LogitsProcessor>>,
        listener: &mut dyn Listener,
    ) -> Result<Answer, EngineError> {
        match request.cancel.clone() {
            None => self.run_request(session, request, tokenizer, processors, listener),
            Some(cancel) => CancellableEngine::new(self, cancel)
                .engine
                .run_request(session, request, tokenizer, processors, listener),
        }
    }

    fn run_request(
        &mut self,
        session: &mut Session,
        request: &Request,
        tokenizer: &Arc<Tokenizer>,
        processors: Vec<Box<dyn LogitsProcessor>>,
        listener: &mut dyn Listener,
    ) -> Result<Answer, EngineError> {
        let prompt = &request.prompt;
        // First: a refused request must not change the session's rows.
        let mut generation = self.start(request, tokenizer)?;
        processors.into_iter().for_each(|processor| generation.add_processor(processor));
        let start = Instant::now();
        self.set_adapter_scales(&mut session.sequence, request.adapter_scales.as_ref())?;
        session.sequence.draft.turn(self.drafts() && request.wants_drafts());
        let cached = self.keep_common(session, prompt, request.wants_drafts());
        // Recurrent states for later requests: after the rows of earlier turns, in case the last
        // message is edited, and before the last prompt token, for another answer.
        self.snapshot(&mut session.sequence)?;
        self.snapshot_at(&mut session.sequence, prompt.len() - 1)?;
        let mut out_of_time = false;
        let fed = self.feed(session, &prompt[cached..], &mut generation, &mut |done| {
            out_of_time = request.max_prompt_time.is_some_and(|limit| start.elapsed() >= limit);
            // After the last step, no time is left to save. The caller then discards the answer.
            listener.prompt(cached + done, prompt.len()) && (!out_of_time || cached + done == prompt.len())
        });
        let prompt_seconds = start.elapsed().as_secs_f64();
        let mut discarded_tokens = 0;
        let start = Instant::now();
        match fed {
            Ok(()) if out_of_time => generation.give_up(),
            Ok(()) => {
                match self.answer(session, &mut generation, request.shift, listener, &mut discarded_tokens) {
                    Ok(()) => {}
                    // A cancelled answer keeps its text.
                    Err(EngineError::Stopped) => generation.interrupt(),
                    Err(error) => return Err(error),
                }
            }
            Err(EngineError::Stopped) if out_of_time => generation.give_up(),
            Err(EngineError::Stopped) => generation.stop(StopReason::Interrupted),
            Err(error) => return Err(error),
        }
        let held_back = generation.finish();
        if !held_back.is_empty() {
            listener.rest(&held_back);
        }
        let drafts = generation.drafts();
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
            drafts,
        })
    }

    /// Truncates the session to the rows that it shares with the prompt. In an engine with MTP
    /// drafts, also drops rows that the MTP layer has not run, for example those of a restored
    /// session, so that they run again. Returns the number of remaining rows.
    fn keep_common(&self, session: &mut Session, prompt: &[u32], drafts: bool) -> usize {
        let same = session.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // The last prompt token always runs, since its logits are needed.
        let same = same.min(prompt.len().saturating_sub(1));
        let differs = session.tokens().get(same).is_some_and(|token| *token != prompt[same]);
        // Fewer than `same` rows remain if a recurrent state returns to an earlier snapshot.
        let kept = session.sequence.truncate(same);
        let draft = &session.sequence.draft;
        if !(self.drafts() && drafts) || kept == 0 {
            return kept;
        }
        let keep = if !draft.is_complete(kept) {
            draft.done()
        } else if kept == same && differs {
            // MTP row i reads token i + 1. The last remaining one has read the token that differs.
            kept - 1
        } else {
            return kept;
        };
        session.sequence.truncate(keep)
    }

    /// Creates the generation of a request. The caller runs the prompt, and then each token that
    /// the generation chooses, with [`Engine::advance`].
    ///
    /// # Errors
    /// If the prompt is empty or does not fit into the context, a parameter is out of range, or the
    /// model does not support a requested context shift.
    pub fn start(&self, request: &Request, tokenizer: &Arc<Tokenizer>) -> Result<Generation, EngineError> {
        let (prompt, context) = (&request.prompt, self.context());
        if prompt.is_empty() {
            return Err(EngineError::Options(format!(
                "the prompt is empty; pass a text or {}",
                Setting::Tokens
            )));
        }
        if prompt.len() >= context {
            return Err(self.prompt_too_long(prompt.len()));
        }
        if let Some(shift) = request.shift {
            // A recurrent state has mixed all tokens and cannot discard some of them.
            if self.cache.layout().is_recurrent() {
                return Err(EngineError::NoContextShift);
            }
            shift.check(context)?;
        }
        let mut generation = Generation::new(Arc::clone(tokenizer), self.config().vocab_size, request)?;
        // With a shift, the answer may be longer than the context.
        if request.shift.is_none() {
            generation.limit_to_context(context);
        }
        Ok(generation)
    }

    /// Runs tokens of the prompt. The generation keeps the logits of the last one.
    fn feed(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        generation: &mut Generation,
        progress: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(), EngineError> {
        let chunk = self.chunk_for(tokens.len());
        self.prefill_for(
            &mut session.sequence,
            tokens,
            chunk,
            LogitsRequest::Last,
            &mut GenerationTaker { generation, after: &mut [] },
            progress,
        )
    }

    /// Chooses and runs tokens until the answer ends, after its prompt has run. `discarded` counts
    /// the tokens that context shifts discard.
    fn answer(
        &mut self,
        session: &mut Session,
        generation: &mut Generation,
        shift: Option<ContextShift>,
        listener: &mut dyn Listener,
        discarded: &mut usize,
    ) -> Result<(), EngineError> {
        generation.mark_run(generation.pending().len());
        // With a limit of 0 tokens, the answer is finished before the first.
        let mut chosen =
            if generation.is_finished() { Vec::new() } else { Vec::from([generation.sample()?]) };
        loop {
            tell(&chosen, generation, listener);
            if generation.is_finished() {
                return Ok(());
            }
            // Checked after the tokens were reported: the last one needs no row until the next
            // step.
            if session.sequence.len() >= self.context() {
                let Some(shift) = shift else {
                    generation.stop(StopReason::Context);
                    return Ok(());
                };
                *discarded += self.shift_session(session, generation, shift)?;
            }
            let running = RunningAnswer::new(&mut session.sequence, generation);
            chosen = match self.advance_owned(&mut [running])?.pop() {
                Some(Ok(AnswerProgress::Token(token))) => Vec::from([token]),
                Some(Ok(AnswerProgress::Tokens(tokens))) => tokens,
                Some(Ok(AnswerProgress::Stuck(tokens, error))) => {
                    tell(&tokens, generation, listener);
                    return Err(error);
                }
                Some(Ok(AnswerProgress::Waited | AnswerProgress::Prompt | AnswerProgress::Late)) | None => {
                    Vec::new()
                }
                // The call has one sequence, so the error needs no index.
                Some(Err(EngineError::Sequence { error, .. })) => {
                    return Err(EngineError::Sequence { index: None, error });
                }
                Some(Err(error)) => return Err(error),
            };
        }
    }

    /// Discards tokens of a session as `shift` specifies. Returns their number.
    fn shift_session(
        &mut self,
        session: &mut Session,
        generation: &mut Generation,
        shift: ContextShift,
    ) -> Result<usize, EngineError> {
        let discarded = shift.discarded(session.sequence.len());
        let count = discarded.len();
        self.shift(&mut session.sequence, discarded.clone())?;
        generation.discard(discarded);
        Ok(count)
    }

    /// The error for a prompt of `tokens` tokens that does not fit.
    pub(crate) fn prompt_too_long(&self, tokens: usize) -> EngineError {
        EngineError::Options(self.context_limits().too_long(tokens))
    }

    /// The limits of prompts.
    pub fn context_limits(&self) -> ContextLimits {
        let trained = self.config().context_length;
        ContextLimits { context: self.context(), largest: self.largest_context(), trained }
    }
}

/// The limits of prompts, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// The context of the loaded model.
    pub context: usize,
    /// The maximum context that fits into memory.
    pub largest: usize,
    /// The context that the model was trained for.
    pub trained: usize,
}

impl ContextLimits {
    /// The message for a prompt of `tokens` tokens that does not fit. Recommends a larger context
    /// only if the prompt would then fit.
    pub fn too_long(&self, tokens: usize) -> String {
        let ContextLimits { context, largest, trained } = *self;
        let advice = if largest > tokens {
            format!("start with a larger {} (up to {largest} tokens) or shorten the prompt", Setting::Context)
        } else if trained > tokens {
            format!(
                "at most {largest} tokens of context fit into memory; shorten the prompt, or try {} with {}",
                Setting::Context.to(trained),
                Setting::Force
            )
        } else {
            format!("the model supports at most {trained} tokens: shorten the prompt")
        };
        format!("the prompt has {tokens} tokens, but the context holds {context}; {advice}")
    }
}
