//! `latent run`: answer one prompt.

use super::chat;
use super::chat_options::{TemplateOptions, system_message};
use super::constraint::AnswerConstraint;
use super::conversation::{self, MessageList};
use super::prompt::{ChatFormatter, RUN_AGAIN};
use super::sampling::Sampling;
use super::speed::{answer_speed, speed};
use crate::args::RunArgs;
use crate::exit::UsageError;
use crate::progress::LateBar;
use crate::{exit, input, interrupt, model, output, prediction, ranks};
use anyhow::{Context, Result};
use latent::{DraftCount, GeneratedAnswer, Model, StopReason};
use latent_formats::OutputFile;
use latent_hosts::predict::PredictionCase;
use latent_text::{TextError, Tokenizer};
use serde_json::{Value, json};
use std::io::{IsTerminal, stdin};

pub(super) fn run(args: &RunArgs) -> Result<()> {
    if args.sampling.logprobs.is_some() && !args.json {
        return Err(UsageError("--logprobs needs --json".into()).into());
    }
    let prompted =
        args.prompt.is_some() || args.messages.is_some() || !args.files.is_empty() || !args.tokens.is_empty();
    // `latent run -m MODEL` at a terminal starts a chat, as ollama does. In a pipe the prompt is
    // standard input.
    if !prompted && stdin().is_terminal() {
        return talk(args);
    }
    let checkpoint = model::open_shared(&args.model)?;
    if ranks::follows(args.model.engine.partition.as_ref())? {
        // A following rank stays in this call until rank 0 ends.
        model::load(&checkpoint, &args.model.engine, true)?;
    }
    // An unsupported model is reported before missing parts of it, and both before the long work.
    let config = latent_graph::ModelConfig::before_loading(&checkpoint)?;
    if let Some(path) = args.saved() {
        OutputFile::check(path)?;
    }
    let quiet = args.quiet || args.json;
    let tokenizer = match Tokenizer::from_checkpoint(&checkpoint) {
        Err(TextError::Missing) if !args.tokens.is_empty() => {
            if !quiet {
                output::note("the model has no tokenizer: the answer is printed as token ids");
            }
            Tokenizer::of_numbers(checkpoint.source(), config.vocab_size)
        }
        tokenizer => tokenizer,
    };
    let tokenizer = tokenizer.with_context(|| checkpoint.display_name())?;
    let mut formatter = ChatFormatter::new(tokenizer, &checkpoint, &config, args.model.engine.ctx_size)?;
    formatter.options = TemplateOptions::new(&args.template, &checkpoint)?;
    let prompt = RunPrompt::new(args, &formatter)?;
    let sampling = Sampling::new(&args.sampling, &checkpoint)?;
    // A raw prompt has no template and so no reasoning.
    let template = latent_text::chat_template(&checkpoint)?.filter(|_| prompt.conversation.is_some());
    let constraint = AnswerConstraint::new(&args.constraint, formatter.tokenizer(), template)?;
    // Compiled before the weights are read, so that an error in a schema or grammar is reported at
    // once.
    let processor = constraint.map(|constraint| constraint.processor(&prompt.tokens)).transpose()?;
    let (text, params) = (formatter.text, sampling.params.clone());
    let model = model::load_for_answers(&checkpoint, text, params, &args.model.engine, quiet)?;
    if let Some(note) = sampling.note().filter(|_| !quiet) {
        output::say(&note);
    }
    if let Some(path) = args.prompt_cache.read() {
        model.restore_prompt_cache(path)?;
        if model.description().drafts && !quiet {
            output::note(RUN_AGAIN);
        }
    }
    let shift = args.shift.shift(&args.sampling, prompt.keep, prompt.tokens.len());
    let bar = LateBar::new(!quiet, "prompt", prompt.tokens.len());
    let request = sampling.request(&args.sampling, &model, prompt.tokens, shift, bar);
    let mut request = request.request(|request| request.logprobs = args.sampling.logprobs);
    if let Some(processor) = processor {
        request = request.processor(processor);
    }
    let mut answer = request.start()?;
    let guard = interrupt::guard_answer(answer.canceller());
    let streamed = match args.json {
        true => Ok(()),
        false => answer.by_ref().try_for_each(|piece| output::stream(&piece?.text)),
    };
    if streamed.is_err() {
        answer.stop();
    }
    // Returns an error of the answer, whose text `streamed` has printed, again.
    let answer = answer.finish()?;
    drop(guard);
    // The session is saved before the rest is printed: printing fails if the terminal was closed.
    let saved = args.saved().map(|path| {
        let attachment = prompt.conversation.map(|mut conversation| {
            conversation.push("assistant", &answer.text);
            conversation.to_bytes()
        });
        let tokens = [&answer.prompt[..], &answer.tokens].concat();
        model.save_prompt_cache(&tokens, attachment.as_deref(), path)
    });
    let printed = streamed.and_then(|()| show(args, &answer, &model, &sampling));
    if let Some(Err(error)) = saved {
        // After a signal `exit::code` prints no error, so it is printed here.
        if interrupt::asked() {
            exit::report(&error.into());
        } else {
            return Err(error.into());
        }
    }
    printed?;
    if answer.stop == StopReason::Interrupted {
        return Err(latent_engine::EngineError::Stopped.into());
    }
    Ok(())
}

/// Prints the footer, or the whole report as JSON.
fn show(args: &RunArgs, answer: &GeneratedAnswer, model: &Model, sampling: &Sampling) -> Result<()> {
    if args.json {
        return output::json(&report(answer, model, sampling));
    }
    output::line("")?;
    if !args.quiet {
        footer(answer);
        if let Some(found) = predicted(args, answer, model)? {
            output::note(&found);
        }
    }
    Ok(())
}

struct RunPrompt {
    tokens: Vec<u32>,
    /// Tokens that a context shift keeps.
    keep: usize,
    /// The messages that it was rendered from; `None` for a raw prompt.
    conversation: Option<MessageList>,
}

impl RunPrompt {
    fn new(args: &RunArgs, formatter: &ChatFormatter) -> Result<RunPrompt> {
        // A context shift keeps the BOS token: many models degrade without it.
        let first = |tokens: &[u32]| {
            usize::from(!tokens.is_empty() && tokens.first().copied() == formatter.tokenizer().bos())
        };
        if !args.tokens.is_empty() {
            let tokens = args.tokens.clone();
            return Ok(RunPrompt { keep: first(&tokens), tokens, conversation: None });
        }
        if let Some(path) = &args.messages {
            return RunPrompt::of_conversation(args, formatter, conversation::read(path)?);
        }
        let text = match (&args.prompt, args.files.as_slice()) {
            (Some(text), _) => text.clone(),
            (None, []) => input::prompt(&input::stdin_text()?).to_owned(),
            (None, files) => input::files_text(files)?,
        };
        if text.trim().is_empty() {
            return Err(
                UsageError("the prompt is empty; give a text, --tokens, or pipe a text in".into()).into()
            );
        }
        if args.raw {
            let tokens = formatter.raw(&text)?;
            return Ok(RunPrompt { keep: first(&tokens), tokens, conversation: None });
        }
        // The check uses the trimmed text, because a template may trim it.
        formatter.check_length(text.trim().len())?;
        let mut conversation = MessageList::new(system_message(&args.template)?.as_deref());
        conversation.push("user", &text);
        RunPrompt::of_conversation(args, formatter, conversation)
    }

    fn of_conversation(
        args: &RunArgs,
        formatter: &ChatFormatter,
        conversation: MessageList,
    ) -> Result<RunPrompt> {
        let keep =
            if args.shift.context_shift { conversation::kept_tokens(formatter, &conversation)? } else { 0 };
        let tokens = formatter.chat(conversation.messages())?;
        Ok(RunPrompt { keep, tokens, conversation: Some(conversation) })
    }
}

/// Starts a chat: standard input is a terminal and no prompt is given.
fn talk(args: &RunArgs) -> Result<()> {
    let single = [("--json", args.json), ("--raw", args.raw), ("--save", args.save.is_some())];
    if let Some((flag, _)) = single.iter().find(|(_, given)| *given) {
        let problem = format!("{flag} needs a prompt; give one: latent run {flag} \"Why is the sky blue?\"");
        return Err(UsageError(problem).into());
    }
    chat::run(&args.chat())
}

fn report(answer: &GeneratedAnswer, model: &Model, sampling: &Sampling) -> Value {
    let usage = &answer.usage;
    let (new, prompt_seconds) = (usage.prompt - usage.cached, usage.prompt_time.as_secs_f64());
    let generate_seconds = usage.generate_time.as_secs_f64();
    let mut value = json!({
        "model": model.description().name,
        "prompt_tokens": answer.prompt,
        "tokens": answer.tokens,
        "text": answer.text,
        "stop": answer.stop,
        "seed": sampling.params.seed,
        "sampling": sampling.report(),
        "discarded_tokens": usage.discarded,
        "timings": {
            "prompt_n": new,
            "cached_n": usage.cached,
            "prompt_seconds": prompt_seconds,
            "prompt_per_second": speed(new, prompt_seconds),
            "predicted_n": answer.tokens.len(),
            "predicted_seconds": generate_seconds,
            "predicted_per_second": answer_speed(answer.tokens.len(), generate_seconds),
        },
    });
    if model.description().drafts || usage.drafts.drafted > 0 {
        value["drafts"] = json!(usage.drafts);
    }
    if !answer.logprobs.is_empty() {
        let logprobs = answer.logprobs.iter();
        value["logprobs"] = logprobs
            .map(|chosen| json!({"token": chosen.token, "logprob": chosen.logprob, "top": chosen.top}))
            .collect();
    }
    value
}

fn footer(answer: &GeneratedAnswer) {
    let usage = &answer.usage;
    output::note(&format!(
        "prompt: {} tokens, {:.1} t/s; answer: {} tokens, {:.1} t/s{}; ended by {}",
        usage.prompt,
        speed(usage.prompt - usage.cached, usage.prompt_time.as_secs_f64()),
        answer.tokens.len(),
        answer_speed(answer.tokens.len(), usage.generate_time.as_secs_f64()),
        drafts(usage.drafts),
        match answer.stop {
            StopReason::End => "the model",
            StopReason::StopString => "a stop string",
            StopReason::Length => "-n",
            StopReason::Context => "a full context",
            StopReason::Interrupted => interrupt::name(),
        }
    ));
}

/// The speed that the hosts file predicts for such an answer.
fn predicted(args: &RunArgs, answer: &GeneratedAnswer, model: &Model) -> Result<Option<String>> {
    if args.model.engine.hosts_file.is_none() {
        return Ok(None);
    }
    let (prompt, tokens) = (answer.usage.prompt, answer.tokens.len());
    let new = prompt - answer.usage.cached;
    let (partition, chunk) =
        model.with_engine(0, move |engine| (engine.partition().cloned(), engine.chunk_for(new)))?;
    let case = PredictionCase {
        context: prompt + tokens,
        // The mean length of the sequence during the answer.
        past: prompt + tokens / 2,
        rows: 1,
        in_flight: 1,
        prompt: new,
        chunk,
        wire: args.model.engine.wire,
    };
    let found = prediction::of_partition(&args.model, partition.as_ref(), &case)?;
    Ok(found.map(|found| {
        let prompt = found
            .first_token
            .map_or_else(String::new, |seconds| format!("prompt {:.1} t/s, ", speed(new, seconds)));
        format!("predicted for {}: {prompt}answer {:.1} t/s", found.partition, found.tokens_per_second)
    }))
}

/// `, 61 of 64 drafts accepted`, or an empty text without drafts.
fn drafts(DraftCount { drafted, accepted, .. }: DraftCount) -> String {
    if drafted == 0 { String::new() } else { format!(", {accepted} of {drafted} drafts accepted") }
}
