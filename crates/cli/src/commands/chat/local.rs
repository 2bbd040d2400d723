//! A model in this process.

use super::file;
use super::partner::{AnswerAttempt, ChatAnswer, ChatQuestion, Partner, ReplyEnding, ReplyFigures};
use super::reply::Reply;
use crate::args::ChatArgs;
use crate::commands::chat_options::TemplateOptions;
use crate::commands::constraint::AnswerConstraint;
use crate::commands::conversation::{self, MessageList};
use crate::commands::prompt::ChatFormatter;
use crate::commands::prompt::RUN_AGAIN;
use crate::commands::sampling::Sampling;
use crate::exit::UsageError;
use crate::output::say;
use crate::progress::LateBar;
use crate::{interrupt, model, output, ranks};
use anyhow::{Context, Result, anyhow};
use latent::{AnswerPiece, ChatPrompt, ContextShift, GeneratedAnswer, Model, StopReason};
use std::path::Path;

/// The model and the state of one conversation.
pub(super) struct LocalPartner<'a> {
    model: Model,
    formatter: ChatFormatter,
    /// The tokens of the last prompt and its answer, or of the restored conversation.
    tokens: Vec<u32>,
    /// Number of rows of the conversation in the KV cache.
    used: usize,
    sampling: Sampling,
    /// The schema or grammar of all answers.
    constraint: Option<AnswerConstraint>,
    shift: Option<ContextShift>,
    args: &'a ChatArgs,
}

impl LocalPartner<'_> {
    /// Loads the model of `args`.
    pub(super) fn open<'a>(args: &'a ChatArgs, conversation: &MessageList) -> Result<LocalPartner<'a>> {
        let checkpoint = model::open_shared(&args.model)?;
        if ranks::follows(args.model.engine.partition.as_ref())? {
            // A following rank stays in this call until rank 0 ends.
            model::load(&checkpoint, &args.model.engine, true)?;
        }
        let config = latent_graph::ModelConfig::before_loading(&checkpoint)?;
        if latent_text::chat_template(&checkpoint)?.is_none() {
            let problem = "the model has no chat template, which a conversation needs; use `latent run \
                           --raw` to continue a text";
            return Err(UsageError(problem.into()).into());
        }
        let mut formatter = ChatFormatter::open(&checkpoint, &config, args.model.engine.ctx_size)?;
        formatter.options = TemplateOptions::new(&args.template, &checkpoint)?;
        // Rendering checks the template before the model is loaded, which can take minutes.
        let keep = conversation::kept_tokens(&formatter, conversation)?;
        let sampling = Sampling::new(&args.sampling, &checkpoint)?;
        if let Some(warning) = formatter.text.warning() {
            output::note(&format!("warning: {warning}"));
        }
        let template = formatter.text.chat_template();
        let constraint = AnswerConstraint::new(&args.constraint, formatter.tokenizer(), template)?;
        let (text, params) = (formatter.text.clone(), sampling.params.clone());
        let model = model::load_for_answers(&checkpoint, text, params, &args.model.engine, args.quiet)?;
        if let Some(note) = sampling.note().filter(|_| !args.quiet) {
            say(&note);
        }
        let shift = args.shift.shift(&args.sampling, keep, keep);
        Ok(LocalPartner { model, formatter, tokens: Vec::new(), used: 0, sampling, constraint, shift, args })
    }

    /// The prompt of the conversation. With a context shift, the oldest turns are removed if the
    /// conversation and an answer would not fit.
    fn fit(&mut self, conversation: &mut MessageList, note: &dyn Fn(&str)) -> Result<ChatPrompt> {
        let context = self.model.description().context;
        let render = |conversation: &MessageList| -> Result<Option<ChatPrompt>> {
            let prompt = self.formatter.chat_if_fits(conversation.messages())?;
            Ok(prompt.ok().filter(|prompt| prompt.tokens().len() < context))
        };
        let whole = render(conversation)?;
        if self.shift.is_none() {
            return whole.ok_or_else(|| self.too_long(conversation));
        }
        // Room for an answer, at most a quarter of the context. Otherwise its first tokens would
        // shift the context.
        let room = self.args.sampling.max_tokens().unwrap_or(usize::MAX).min(context / 4).max(1);
        let roomy = |prompt: &Option<ChatPrompt>| {
            prompt.as_ref().is_some_and(|prompt| prompt.tokens().len() <= context - room)
        };
        let (mut dropped, mut prompt) = (0, whole);
        // Fewer turns never make the prompt longer, so a binary search finds the fewest to remove.
        // Rendering and encoding are too slow for one try per turn.
        let most = conversation.droppable();
        let (mut low, mut high) = (1, if roomy(&prompt) { 0 } else { most });
        while low <= high {
            let middle = usize::midpoint(low, high);
            let rest = render(&conversation.without(middle))?;
            let fits = roomy(&rest);
            // If even the last turn alone leaves no room for an answer, it is still tried: it may
            // fit the context itself.
            if fits || middle == most {
                (dropped, prompt) = (middle, rest);
            }
            if fits { high = middle - 1 } else { low = middle + 1 }
        }
        let Some(prompt) = prompt else { return Err(self.too_long(conversation)) };
        if dropped > 0 {
            let before = conversation.len();
            *conversation = conversation.without(dropped);
            let removed = before - conversation.len();
            note(&format!("(the context is full: the {removed} oldest messages are dropped from now on)"));
        }
        Ok(prompt)
    }

    fn too_long(&self, conversation: &MessageList) -> anyhow::Error {
        let context = self.model.description().context;
        if conversation.len() <= 1 || self.shift.is_some() {
            let ctx = self.larger().map_or_else(String::new, |larger| format!(", or {larger}"));
            return anyhow!(
                "the message and the prompt before it do not fit into a context of {context} tokens: shorten \
                 the message{ctx}"
            );
        }
        anyhow!("the conversation does not fit into a context of {context} tokens: {}", self.ways_out())
    }

    /// What the user can do about a full context.
    fn ways_out(&self) -> String {
        let mut ways = vec!["/clear or /undo frees tokens".to_owned()];
        if self.shift.is_none() {
            ways.push("--context-shift drops the oldest messages".to_owned());
        }
        ways.extend(self.larger());
        ways.join("; ")
    }

    fn ending(&self, answer: &GeneratedAnswer) -> ReplyEnding {
        match answer.stop {
            StopReason::Context => ReplyEnding::Full(self.ways_out()),
            StopReason::Length => ReplyEnding::Length,
            StopReason::Interrupted => ReplyEnding::Stopped,
            StopReason::End | StopReason::StopString => ReplyEnding::Whole,
        }
    }
}

impl Partner for LocalPartner<'_> {
    fn answer(&mut self, question: ChatQuestion<'_>) -> Result<AnswerAttempt> {
        let ChatQuestion { conversation, again, screen, note } = question;
        // Errors of the prompt (too long, a template that fails) are answers to the user and do not
        // end the chat.
        let prompt = match self.fit(conversation, note) {
            Ok(prompt) => prompt,
            Err(error) => return Ok(AnswerAttempt::Failed(format!("{error:#}"))),
        };
        let args = &self.args.sampling;
        let bar = LateBar::new(!self.args.quiet, "prompt", prompt.tokens().len());
        let processor = self.constraint.as_ref().map(|constraint| constraint.processor(prompt.tokens()));
        // A fixed --seed still gives reproducible answers to /regen.
        let seed = self.sampling.params.seed.wrapping_add(again);
        let mut request = self.sampling.request(args, &self.model, prompt, self.shift, bar).seed(seed);
        if let Some(processor) = processor.transpose()? {
            request = request.processor(processor);
        }
        let mut reply = Reply::new(screen);
        let answer = match request.start() {
            Ok(mut answer) => {
                let _guard = interrupt::guard_answer(answer.canceller());
                // An error of the answer ends it, and `finish` returns it.
                for piece in answer.by_ref().flatten() {
                    show(&mut reply, &piece)?;
                }
                answer.finish()
            }
            Err(error) => Err(error),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // The error is printed next and must begin on a row of its own.
                if !reply.is_empty() {
                    reply.finish()?;
                }
                return Ok(AnswerAttempt::Failed(error.to_string()));
            }
        };
        self.tokens = [&answer.prompt[..], &answer.tokens].concat();
        // Stopped during the prompt. An empty answer must not become part of the conversation.
        if answer.stop == StopReason::Interrupted && answer.tokens.is_empty() {
            return Ok(AnswerAttempt::Stopped);
        }
        reply.finish()?;
        // Without reasoning, or with calls, the conversation keeps the model's exact text. The next
        // prompt then has the same tokens and reuses the whole cache.
        let plain = reply.reasoning.is_empty() || !reply.calls.is_empty();
        let text = if plain { answer.text.clone() } else { reply.text() };
        let reasoning = if plain { String::new() } else { reply.reasoning };
        let usage = &answer.usage;
        // The last token has no row yet.
        self.used =
            (self.tokens.len() - usize::from(!answer.tokens.is_empty())).saturating_sub(usage.discarded);
        let figures = ReplyFigures {
            prompt: usage.prompt,
            cached: usage.cached,
            tokens: answer.tokens.len(),
            prompt_seconds: usage.prompt_time.as_secs_f64(),
            seconds: usage.generate_time.as_secs_f64(),
            discarded: usage.discarded,
            drafted: usage.drafts.drafted,
            accepted: usage.drafts.accepted,
        };
        Ok(AnswerAttempt::Answered(ChatAnswer { text, reasoning, ending: self.ending(&answer), figures }))
    }

    fn context(&self) -> Option<(usize, usize)> {
        Some((self.used, self.model.description().context))
    }

    fn larger(&self) -> Option<String> {
        let description = self.model.description();
        let largest = description.largest_context;
        (largest > description.context).then(|| format!("--ctx-size can be up to {largest}"))
    }

    fn save(&mut self, conversation: &MessageList, path: &Path) -> Result<String> {
        if file::is_text(path) {
            return file::save(conversation, path);
        }
        let attachment = conversation.to_bytes();
        let tokens = self.model.save_prompt_cache(&self.tokens, Some(&attachment), path)?;
        let messages = conversation.messages().len();
        Ok(format!("saved {tokens} tokens, {messages} messages to {}", path.display()))
    }

    /// Replaces this conversation by a saved one. If that fails, this one stays.
    fn load(&mut self, path: &Path, note: &dyn Fn(&str)) -> Result<(MessageList, String)> {
        if let Some(loaded) = file::load(path)? {
            return Ok(loaded);
        }
        let (tokens, attachment) = self.model.restore_prompt_cache(path)?;
        let conversation = attachment.map(|bytes| MessageList::from_bytes(&bytes)).transpose();
        let conversation =
            conversation.with_context(|| format!("{}: its conversation cannot be read", path.display()))?;
        (self.used, self.tokens) = (tokens.len(), tokens);
        if self.model.description().drafts {
            note(RUN_AGAIN);
        }
        let (tokens, path) = (self.used, path.display());
        let Some(conversation) = conversation else {
            let message = format!(
                "restored {tokens} tokens from {path}; it contains no conversation, so a new one begins; cached tokens are reused"
            );
            return Ok((MessageList::default(), message));
        };
        let messages = conversation.messages().len();
        let message = format!("restored {tokens} tokens, {messages} messages from {path}");
        Ok((conversation, message))
    }
}

/// Shows a piece of an answer.
fn show(reply: &mut Reply<'_>, piece: &AnswerPiece) -> Result<()> {
    reply.reasoning(&piece.reasoning)?;
    reply.content(&piece.content)?;
    piece.calls.iter().try_for_each(|call| reply.call(call.index, &call.name, &call.arguments))
}
