//! The loop from a prompt to text.

use crate::cache::Sequence;
use crate::context_shift::ContextShift;
use crate::draft::{DraftInput, DraftedTokens};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generation::{Generation, LogitsProcessor};
use crate::logits_taker::{KeptLogits, LogitsTaker};
use crate::lookup::MAX_DRAFTS;
use crate::request::{Answer, Listener, Request, StopReason, TokenEvent};
use crate::session::Session;
use crate::step::{LogitsRequest, SeqInput};
use latent_backend::{CancelToken, Instant, Logits};
use latent_text::Tokenizer;
use latent_types::Setting;
use std::sync::Arc;

/// State of an answer in addition to its text.
#[derive(Default)]
struct AnswerState {
    /// Tokens that context shifts discarded.
    discarded: usize,
    /// Drafts of which each has a row behind that of the last token.
    drafts: Vec<u32>,
    /// How many of them were accepted.
    accepted: usize,
    /// The logits of their rows.
    logits: Vec<KeptLogits>,
    /// What their step cost, in steps without drafts, if they were looked up.
    cost: Option<f64>,
}

/// An answer, which keeps the logits of its last row, and where those of drafts' rows go.
pub(crate) struct GenerationTaker<'t> {
    pub(crate) generation: &'t mut Generation,
    pub(crate) after: &'t mut [KeptLogits],
}

impl LogitsTaker for GenerationTaker<'_> {
    fn enough(&self, _input: usize, row: usize) -> usize {
        // a draft's row is used once the tokens before it are chosen
        self.generation.enough(row)
    }

    fn take(&mut self, _input: usize, row: usize, logits: Logits<'_>) {
        match row.checked_sub(1).and_then(|draft| self.after.get_mut(draft)) {
            Some(after) => after.keep(logits),
            None => self.generation.keep_logits(logits),
        }
    }
}

/// An engine whose steps watch the token of an answer. Dropped, also by a panic of the answer's listener, it watches its own again.
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
        self.generate_with(session, request, tokenizer, Vec::new(), listener)
    }

    /// The same with processors of its logits, such as a grammar.
    ///
    /// # Errors
    /// As for [`generate`](Self::generate); and where a processor cannot go on.
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
        let mut generation = self.start(request, tokenizer)?;
        processors.into_iter().for_each(|processor| generation.add_processor(processor));
        let start = Instant::now();
        self.set_adapter_scales(&mut session.sequence, request.adapter_scales.as_ref())?;
        session.sequence.draft.turn(self.drafts() && !request.no_drafts);
        let cached = self.keep_common(session, prompt, request.no_drafts);
        // places to go back to: the end of what was said before, and the last token of the prompt, for another answer
        self.snapshot(&mut session.sequence)?;
        self.snapshot_at(&mut session.sequence, prompt.len() - 1)?;
        let mut out_of_time = false;
        let fed = self.feed(session, &prompt[cached..], &mut generation, &mut |done| {
            out_of_time = request.max_prompt_time.is_some_and(|limit| start.elapsed() >= limit);
            // a step that is the last has an end anyway
            listener.prompt(cached + done, prompt.len()) && (!out_of_time || cached + done == prompt.len())
        });
        let prompt_seconds = start.elapsed().as_secs_f64();
        let mut answering = AnswerState::default();
        let start = Instant::now();
        match fed {
            Ok(()) if out_of_time => generation.give_up(),
            Ok(()) => match self.answer(session, &mut generation, request.shift, listener, &mut answering) {
                Ok(()) => {}
                // the text so far stays
                Err(EngineError::Stopped) => generation.interrupt(),
                Err(error) => return Err(error),
            },
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
            discarded_tokens: answering.discarded,
            drafts,
        })
    }

    /// Forgets what does not begin the prompt; in an engine that drafts also rows that its MTP layer lacks, as of a restored session, so that
    /// they run again. Returns how many rows stay.
    fn keep_common(&self, session: &mut Session, prompt: &[u32], no_drafts: bool) -> usize {
        let same = session.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
        // the logits of the last token are needed
        let same = same.min(prompt.len().saturating_sub(1));
        let differs = session.tokens().get(same).is_some_and(|token| *token != prompt[same]);
        // fewer rows stay where a recurrent state goes back to a snapshot
        let kept = session.sequence.truncate(same);
        let draft = &session.sequence.draft;
        if !self.drafts() || no_drafts || kept == 0 {
            return kept;
        }
        let keep = if !draft.is_complete(kept) {
            draft.done()
        } else if kept == same && differs {
            // the MTP layer's row before this one has read the token that was here
            kept - 1
        } else {
            return kept;
        };
        session.sequence.truncate(keep)
    }

    /// A generation for a request that this engine can serve. The caller feeds the prompt, and then
    /// each token that the generation chooses; see [`Engine::advance`].
    ///
    /// # Errors
    /// A prompt that is empty or does not fit into the context; parameters out of their range; a context shift that the model cannot do.
    pub fn start(&self, request: &Request, tokenizer: &Arc<Tokenizer>) -> Result<Generation, EngineError> {
        let (prompt, context) = (&request.prompt, self.context());
        if prompt.is_empty() {
            return Err(EngineError::Options(format!(
                "the prompt has no tokens; give a text or {}",
                Setting::Tokens
            )));
        }
        if prompt.len() >= context {
            return Err(self.prompt_too_long(prompt.len()));
        }
        if let Some(shift) = request.shift {
            if self.cache.layout().is_recurrent() {
                return Err(EngineError::NoContextShift);
            }
            shift.check(context)?;
        }
        let mut generation = Generation::new(Arc::clone(tokenizer), self.config().vocab_size, request)?;
        if request.shift.is_none() {
            generation.limit_to_context(context);
        }
        Ok(generation)
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
        self.prefill_for(
            &mut session.sequence,
            tokens,
            chunk,
            LogitsRequest::Last,
            &mut GenerationTaker { generation, after: &mut [] },
            progress,
        )
    }

    /// Chooses and runs tokens until the answer ends.
    fn answer(
        &mut self,
        session: &mut Session,
        generation: &mut Generation,
        shift: Option<ContextShift>,
        listener: &mut dyn Listener,
        state: &mut AnswerState,
    ) -> Result<(), EngineError> {
        // an answer of no tokens ends before the first
        while !generation.is_finished() {
            let chosen = generation.sample()?;
            let logprob = chosen.logprob.as_ref().map(|(own, top)| (*own, top.as_slice()));
            if !listener.token(&TokenEvent { token: chosen.token, text: &chosen.text, logprob }) {
                generation.interrupt();
            }
            if let Some(draft) = state.drafts.get(state.accepted) {
                let right = *draft == chosen.token;
                generation.count_draft(state.accepted == 0, right);
                if right && !generation.is_finished() {
                    // its row has run with the one before
                    generation.keep_logits(state.logits[state.accepted].logits());
                    state.accepted += 1;
                    continue;
                }
                let refused = state.drafts.len() - state.accepted;
                session.sequence.truncate(session.sequence.len() - refused);
            }
            session.sequence.settle();
            if let Some(cost) = state.cost.take() {
                generation.count_looked_up(state.drafts.len(), state.accepted, cost);
            }
            state.drafts.clear();
            state.accepted = 0;
            if generation.is_finished() {
                break;
            }
            if session.sequence.len() >= self.context() {
                let Some(shift) = shift else {
                    generation.stop(StopReason::Context);
                    break;
                };
                state.discarded += self.shift_session(session, shift)?;
            }
            self.run_chosen(session, generation, chosen.token, state)?;
        }
        Ok(())
    }

    /// Runs a chosen token, together with drafts of the next ones if the engine drafts and they
    /// fit.
    fn run_chosen(
        &mut self,
        session: &mut Session,
        generation: &mut Generation,
        token: u32,
        state: &mut AnswerState,
    ) -> Result<(), EngineError> {
        if self.lookup {
            (state.drafts, state.cost) = self.drafts_of_text(&session.sequence, generation, 1, MAX_DRAFTS);
        }
        if state.drafts.is_empty() && generation.left() > 1 && self.has_room_for_draft(&session.sequence, 1) {
            state.drafts.extend(self.likeliest_next(&mut session.sequence, token)?);
        }
        state.logits.resize_with(state.drafts.len(), KeptLogits::default);
        let tokens = [&[token], state.drafts.as_slice()].concat();
        let mut inputs = [SeqInput::drafted(&mut session.sequence, &tokens)];
        let start = Instant::now();
        self.step_for(&mut inputs, &mut GenerationTaker { generation, after: &mut state.logits })?.all()?;
        self.step_costs.count(tokens.len(), start.elapsed().as_secs_f64());
        Ok(())
    }

    /// The token that the MTP layer holds likeliest after `token`; none where the KV cache has no block for its rows.
    pub(crate) fn likeliest_next(
        &mut self,
        sequence: &mut Sequence,
        token: u32,
    ) -> Result<Option<u32>, EngineError> {
        let mut drafted = DraftedTokens(vec![None]);
        match self.draft_for(&mut [DraftInput { sequence, token }], &mut drafted) {
            Ok(()) => Ok(drafted.0[0]),
            Err(EngineError::CacheFull(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Discards tokens of a session as `shift` says; returns how many.
    pub(crate) fn shift_session(
        &mut self,
        session: &mut Session,
        shift: ContextShift,
    ) -> Result<usize, EngineError> {
        let discarded = shift.discarded(session.sequence.len());
        let count = discarded.len();
        self.shift(&mut session.sequence, discarded)?;
        Ok(count)
    }

    /// The error for a prompt of `tokens` tokens that does not fit, with advice that can be followed.
    pub(crate) fn prompt_too_long(&self, tokens: usize) -> EngineError {
        let (context, largest) = (self.context(), self.largest_context());
        let limit = self.config().context_length;
        let advice = if largest > tokens {
            format!("start with a larger {} (up to {largest} tokens) or shorten the prompt", Setting::Context)
        } else if limit > tokens {
            format!(
                "no more than {largest} tokens of context fit into memory; shorten the prompt, or try {} with {}",
                Setting::Context.to(limit),
                Setting::Force
            )
        } else {
            format!("the model was made for {limit} tokens at most: shorten the prompt")
        };
        EngineError::Options(format!(
            "the prompt has {tokens} tokens, but the context holds {context}; {advice}"
        ))
    }
}
