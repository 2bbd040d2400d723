//! A model in this process.

use super::file;
use super::partner::{AnswerAttempt, ChatAnswer, ChatQuestion, Partner, ReplyEnding, ReplyFigures};
use super::reply::Reply;
use crate::args::ChatArgs;
use crate::commands::chat_options::TemplateOptions;
use crate::commands::constraint::{AnswerConstraint, processors};
use crate::commands::conversation::{self, MessageList};
use crate::commands::prompt::ChatFormatter;
use crate::commands::prompt::RUN_AGAIN;
use crate::commands::sampling::Sampling;
use crate::exit::UsageError;
use crate::output::say;
use crate::progress::LateBar;
use crate::{interrupt, model, output, ranks};
use anyhow::{Context, Result, anyhow};
use latent_engine::{Answer, ContextShift, Engine, Listener, Request, Session, StopReason, TokenEvent};
use latent_formats::Checkpoint;
use latent_text::{ModelHints, ParserOptions, ResponseEvent, ResponseFormat, ResponseParser, Tokenizer};
use std::collections::HashSet;
use std::path::Path;

/// The engine and the state of one conversation.
pub(super) struct LocalPartner<'a> {
    engine: Engine,
    formatter: ChatFormatter,
    format: ResponseFormat,
    /// Control tokens that occur in the format's markers.
    markers: HashSet<u32>,
    session: Session,
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
        let format = response_format(&checkpoint, &config)?;
        let template = latent_text::chat_template(&checkpoint)?;
        let constraint = AnswerConstraint::new(&args.constraint, &formatter.tokenizer, template)?;
        let engine = model::load(&checkpoint, &args.model.engine, args.quiet)?;
        if let Some(note) = sampling.note().filter(|_| !args.quiet) {
            say(&note);
        }
        let shift = args.shift.shift(&args.sampling, keep, keep);
        let markers = format.marker_tokens(&formatter.tokenizer);
        let session = Session::default();
        Ok(LocalPartner { engine, formatter, format, markers, session, sampling, constraint, shift, args })
    }

    /// Tokens of the conversation. With a context shift, the oldest turns are removed if the
    /// conversation and an answer would not fit.
    fn fit(&mut self, conversation: &mut MessageList, note: &dyn Fn(&str)) -> Result<Vec<u32>> {
        let context = self.engine.context();
        let render = |conversation: &MessageList| -> Result<Option<Vec<u32>>> {
            let tokens = self.formatter.chat_if_fits(conversation.messages())?;
            Ok(tokens.ok().filter(|tokens| tokens.len() < context))
        };
        let whole = render(conversation)?;
        if self.shift.is_none() {
            return whole.ok_or_else(|| self.too_long(conversation));
        }
        // Room for an answer, at most a quarter of the context. Otherwise its first tokens would
        // shift the context.
        let room = self.args.sampling.max_tokens().unwrap_or(usize::MAX).min(context / 4).max(1);
        let roomy = |tokens: &Option<Vec<u32>>| tokens.as_ref().is_some_and(|t| t.len() <= context - room);
        let (mut dropped, mut tokens) = (0, whole);
        // Fewer turns never make the prompt longer, so a binary search finds the fewest to remove.
        // Rendering and encoding are too slow for one try per turn.
        let most = conversation.droppable();
        let (mut low, mut high) = (1, if roomy(&tokens) { 0 } else { most });
        while low <= high {
            let middle = usize::midpoint(low, high);
            let rest = render(&conversation.without(middle))?;
            let fits = roomy(&rest);
            // If even the last turn alone leaves no room for an answer, it is still tried: it may
            // fit the context itself.
            if fits || middle == most {
                (dropped, tokens) = (middle, rest);
            }
            if fits { high = middle - 1 } else { low = middle + 1 }
        }
        let Some(tokens) = tokens else { return Err(self.too_long(conversation)) };
        if dropped > 0 {
            let before = conversation.len();
            *conversation = conversation.without(dropped);
            let removed = before - conversation.len();
            note(&format!("(the context is full: the {removed} oldest messages are dropped from now on)"));
        }
        Ok(tokens)
    }

    fn too_long(&self, conversation: &MessageList) -> anyhow::Error {
        let context = self.engine.context();
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

    fn parser(&self, conversation: &MessageList) -> Result<ResponseParser> {
        let name = |id: &u32| self.formatter.tokenizer.token_text(*id).map(str::to_owned);
        let options = ParserOptions {
            control_tokens: self.markers.iter().filter_map(name).collect(),
            ..ParserOptions::default()
        };
        let mut parser = ResponseParser::new(&self.format, self.formatter.options.tools(), &options);
        // Some templates end the prompt within `<think>`: the parser must start in the reasoning
        // state.
        parser.continue_prompt(&self.formatter.rendered(conversation.messages())?);
        Ok(parser)
    }

    fn ending(&self, answer: &Answer) -> ReplyEnding {
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
        let ready = self.fit(conversation, note).and_then(|prompt| Ok((prompt, self.parser(conversation)?)));
        let (prompt, parser) = match ready {
            Ok(ready) => ready,
            Err(error) => return Ok(AnswerAttempt::Failed(format!("{error:#}"))),
        };
        let mut sampling = self.sampling.params.clone();
        // A fixed --seed still gives reproducible answers to /regen.
        sampling.seed = sampling.seed.wrapping_add(again);
        let request = Request {
            prompt,
            sampling,
            max_tokens: self.args.sampling.max_tokens(),
            ignore_eos: self.args.sampling.ignore_eos,
            stop: self.args.sampling.stop.clone(),
            shift: self.shift,
            ..Request::default()
        };
        let processors = processors(self.constraint.as_ref(), &request.prompt)?;
        let tokenizer = &self.formatter.tokenizer;
        let mut listener = ShownAnswer {
            bar: LateBar::new(!self.args.quiet, "prompt", request.prompt.len()),
            parser,
            events: Vec::new(),
            markers: &self.markers,
            tokenizer,
            reply: Reply::new(screen),
            failed: None,
        };
        let answer =
            self.engine.generate_with(&mut self.session, &request, tokenizer, processors, &mut listener);
        listener.bar.finish();
        let cut = answer.as_ref().map_or(true, |answer| answer.stop.is_cut());
        let ShownAnswer { mut reply, failed, .. } = listener.finished(cut);
        if let Some(error) = failed {
            return Err(error);
        }
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
        let (drafted, accepted) = (answer.drafts.drafted, answer.drafts.accepted);
        let figures = ReplyFigures {
            prompt: answer.prompt_tokens,
            cached: answer.cached_tokens,
            tokens: answer.tokens.len(),
            prompt_seconds: answer.prompt_seconds,
            seconds: answer.generate_seconds,
            discarded: answer.discarded_tokens,
            drafted,
            accepted,
        };
        Ok(AnswerAttempt::Answered(ChatAnswer { text, reasoning, ending: self.ending(&answer), figures }))
    }

    fn context(&self) -> Option<(usize, usize)> {
        Some((self.session.sequence.len(), self.engine.context()))
    }

    fn larger(&self) -> Option<String> {
        let largest = self.engine.largest_context();
        (largest > self.engine.context()).then(|| format!("--ctx-size can be up to {largest}"))
    }

    fn save(&mut self, conversation: &MessageList, path: &Path) -> Result<String> {
        if file::is_text(path) {
            return file::save(conversation, path);
        }
        let attachment = conversation.to_bytes();
        let tokens = self.engine.save_session(&mut self.session, Some(&attachment), path)?;
        let messages = conversation.messages().len();
        Ok(format!("saved {tokens} tokens, {messages} messages to {}", path.display()))
    }

    /// Replaces this conversation by a saved one. If that fails, this one stays.
    fn load(&mut self, path: &Path, note: &dyn Fn(&str)) -> Result<(MessageList, String)> {
        if let Some(loaded) = file::load(path)? {
            return Ok(loaded);
        }
        // The cache has room for one conversation: the old one is released first. If the file
        // cannot be read, the old conversation stays and its next prompt is computed again.
        let old = std::mem::take(&mut self.session);
        self.engine.release(old.sequence);
        let (session, attachment) = self.engine.restore_session(path)?;
        let conversation = attachment.map(|bytes| MessageList::from_bytes(&bytes)).transpose();
        let conversation = match conversation {
            Ok(conversation) => conversation,
            Err(error) => {
                self.engine.release(session.sequence);
                return Err(error)
                    .with_context(|| format!("{}: its conversation cannot be read", path.display()));
            }
        };
        self.session = session;
        if self.engine.drafts() {
            note(RUN_AGAIN);
        }
        let (tokens, path) = (self.session.tokens().len(), path.display());
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

/// The format in which the model writes reasoning and tool calls.
fn response_format(checkpoint: &Checkpoint, config: &latent_graph::ModelConfig) -> Result<ResponseFormat> {
    let hints = ModelHints {
        response_template: latent_text::response_template(checkpoint),
        chat_template: latent_text::chat_template(checkpoint)?,
        architecture: Some(config.architecture.as_str()),
    };
    Ok(ResponseFormat::for_model(&hints).or_else(|error| {
        output::note(&format!("warning: the model's response_template is ignored: {error}"));
        ResponseFormat::for_model(&ModelHints { response_template: None, ..hints })
    })?)
}

/// Shows an answer and stops at Ctrl-C.
struct ShownAnswer<'a> {
    bar: LateBar,
    parser: ResponseParser,
    events: Vec<ResponseEvent>,
    markers: &'a HashSet<u32>,
    tokenizer: &'a Tokenizer,
    reply: Reply<'a>,
    /// The error of standard output, if any.
    failed: Option<anyhow::Error>,
}

impl ShownAnswer<'_> {
    /// Shows the events of the parser.
    fn show(&mut self) -> Result<()> {
        for event in self.events.drain(..) {
            match event {
                ResponseEvent::Reasoning(text) => self.reply.reasoning(&text)?,
                ResponseEvent::Content(text) => self.reply.content(&text)?,
                ResponseEvent::ToolCallStart { index, name, .. } => self.reply.call(index, &name, "")?,
                ResponseEvent::ToolCallArguments { index, delta } => self.reply.call(index, "", &delta)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn finished(mut self, cut: bool) -> Self {
        if cut {
            self.parser.cut(&mut self.events);
        } else {
            self.parser.finish(&mut self.events);
        }
        if self.failed.is_none() {
            self.failed = self.show().err();
        }
        self
    }
}

impl Listener for ShownAnswer<'_> {
    fn prompt(&mut self, done: usize, total: usize) -> bool {
        self.bar.advance(done, total);
        !interrupt::asked()
    }

    fn token(&mut self, event: &TokenEvent<'_>) -> bool {
        // Control tokens have no text. Those of markers (`<think>` in some vocabularies) go to the
        // parser by name.
        if event.text.is_empty() && self.markers.contains(&event.token) {
            let name = self.tokenizer.token_text(event.token).unwrap_or_default();
            self.parser.push(name, true, &mut self.events);
        } else {
            self.parser.push(event.text, false, &mut self.events);
        }
        if let Err(error) = self.show() {
            self.failed = Some(error);
            return false;
        }
        !interrupt::asked()
    }

    fn rest(&mut self, text: &str) {
        self.parser.push(text, false, &mut self.events);
        if self.failed.is_none() {
            self.failed = self.show().err();
        }
    }
}
