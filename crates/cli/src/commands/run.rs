//! `latent run`: answer one prompt.

use super::prompt::{self, Speech};
use crate::args::RunArgs;
use crate::exit::Usage;
use crate::{interrupt, model, output};
use anyhow::Result;
use engine::{Answer, Engine, Event, Listener, Request, Session, StopReason};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::io::{IsTerminal, Read, stdin};

pub(super) fn run(args: &RunArgs) -> Result<()> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    // what cannot run is said before what it lacks besides
    let contract = graph::Contract::from_checkpoint(&checkpoint)?;
    let speech = Speech::open(&checkpoint, &contract, args.model.ctx)?;
    let prompt = prompt_tokens(args, &speech)?;
    let sampling = prompt::sampling(&args.sampling)?;
    let quiet = args.quiet || args.json;
    let mut engine = model::load(&checkpoint, &args.model, quiet)?;
    let mut session = Session::default();
    if let Some(path) = &args.restore {
        (session.sequence, session.tokens) = engine.restore(path)?;
    }
    let request = Request {
        prompt,
        sampling,
        max_tokens: args.sampling.max_tokens,
        stop: args.sampling.stop.clone(),
        logprobs: args.sampling.logprobs,
    };
    let mut printer =
        Printer { bar: model::bar(!quiet, "prompt"), stream: !args.json, logprobs: Vec::new(), failed: None };
    let answer = engine.generate(&mut session, &request, &speech.tokenizer, &mut printer)?;
    printer.bar.finish_and_clear();
    if let Some(error) = printer.failed {
        return Err(error);
    }
    if args.json {
        output::json(&report(&answer, &engine, &request, printer.logprobs)?)?;
    } else {
        output::line("")?;
        if !quiet {
            footer(&answer);
        }
    }
    if let Some(path) = &args.save {
        engine.save(&session.sequence, &session.tokens, path)?;
    }
    if answer.stop == StopReason::Interrupted {
        return Err(engine::EngineError::Stopped.into());
    }
    Ok(())
}

fn prompt_tokens(args: &RunArgs, speech: &Speech) -> Result<Vec<u32>> {
    if !args.tokens.is_empty() {
        return Ok(args.tokens.clone());
    }
    let text = match &args.prompt {
        Some(text) => text.clone(),
        None => read_stdin(speech)?,
    };
    if text.trim().is_empty() {
        return Err(Usage("the prompt is empty; give a text, --tokens, or pipe a text in".into()).into());
    }
    if args.raw {
        return speech.raw(&text);
    }
    // a template may drop the white space around it
    speech.check_length(text.trim().len())?;
    let system = args.system.iter().map(|text| prompt::message("system", text));
    let messages: Vec<Value> = system.chain([prompt::message("user", &text)]).collect();
    speech.chat(&messages)
}

/// Bytes of standard input that are read beyond those that fit, in case they are white space which the template drops.
const SPARE: usize = 1 << 20;

/// Bytes of standard input that are read where the tokenizer's rules set no bound.
const UNBOUNDED: usize = 1 << 30;

fn read_stdin(speech: &Speech) -> Result<String> {
    if stdin().is_terminal() {
        return Err(Usage("there is no prompt; give one: latent run \"Why is the sky blue?\"".into()).into());
    }
    let most = speech.longest().unwrap_or(UNBOUNDED).saturating_add(SPARE);
    let mut bytes = Vec::new();
    stdin().lock().take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most {
        return Err(
            Usage(format!("standard input has more than {most} bytes, which no prompt can have")).into()
        );
    }
    String::from_utf8(bytes).map_err(|_| Usage("standard input is not UTF-8 text".into()).into())
}

/// Streams text to standard output, and follows Ctrl-C.
pub(super) struct Printer {
    pub(super) bar: ProgressBar,
    pub(super) stream: bool,
    pub(super) logprobs: Vec<Value>,
    /// Standard output went away.
    pub(super) failed: Option<anyhow::Error>,
}

impl Listener for Printer {
    fn prompt(&mut self, done: usize, total: usize) -> bool {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        if done == total {
            self.bar.finish_and_clear();
        }
        !interrupt::asked()
    }

    fn token(&mut self, event: &Event<'_>) -> bool {
        if let Some((own, top)) = event.logprob {
            self.logprobs.push(json!({"token": event.token, "logprob": own, "top": top}));
        }
        if self.stream
            && let Err(error) = output::now(event.text)
        {
            self.failed = Some(error);
            return false;
        }
        !interrupt::asked()
    }
}

/// Tokens a second; 0 where nothing was timed.
fn speed(tokens: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

fn report(answer: &Answer, engine: &Engine, request: &Request, logprobs: Vec<Value>) -> Result<Value> {
    let s = engine.summary();
    let mut value = json!({
        "model": s.name,
        "prompt_tokens": request.prompt,
        "tokens": answer.tokens,
        "text": answer.text,
        "stop": answer.stop,
        "seed": request.sampling.seed,
        "timings": {
            "prompt_n": answer.prompt_tokens - answer.cached_tokens,
            "cached_n": answer.cached_tokens,
            "prompt_seconds": answer.prompt_seconds,
            "prompt_per_second": speed(answer.prompt_tokens - answer.cached_tokens, answer.prompt_seconds),
            "predicted_n": answer.tokens.len(),
            "predicted_seconds": answer.generate_seconds,
            "predicted_per_second": speed(answer.tokens.len(), answer.generate_seconds),
        },
    });
    if !logprobs.is_empty() {
        value["logprobs"] = Value::Array(logprobs);
    }
    Ok(value)
}

fn footer(answer: &Answer) {
    let new = answer.prompt_tokens - answer.cached_tokens;
    eprintln!(
        "prompt: {} tokens, {:.1} t/s; answer: {} tokens, {:.1} t/s; ended by {}",
        answer.prompt_tokens,
        speed(new, answer.prompt_seconds),
        answer.tokens.len(),
        speed(answer.tokens.len(), answer.generate_seconds),
        match answer.stop {
            StopReason::End => "the model",
            StopReason::StopString => "a stop string",
            StopReason::Length => "-n",
            StopReason::Context => "a full context",
            StopReason::Interrupted => "Ctrl-C",
        }
    );
}
