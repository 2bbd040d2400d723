//! `latent chat`: a conversation in the terminal.

use super::prompt::{self, Speech};
use super::run::Printer;
use crate::args::ChatArgs;
use crate::{interrupt, model, output};
use anyhow::Result;
use engine::{Engine, Request, Session, StopReason};
use rustyline::error::ReadlineError;
use serde_json::Value;

const HELP: &str = "/clear forgets the conversation, /undo the last question and answer, /save FILE and /restore FILE keep the cache, /quit ends. \
                    Ctrl-C stops an answer.";

pub(super) fn run(args: &ChatArgs) -> Result<()> {
    let checkpoint = model::open(args.model.model.as_deref())?;
    let contract = graph::Contract::from_checkpoint(&checkpoint)?;
    let speech = Speech::open(&checkpoint, &contract, args.model.ctx)?;
    let engine = model::load(&checkpoint, &args.model, false)?;
    let system = args.system.iter().map(|text| prompt::message("system", text)).collect();
    let mut chat = Chat { engine, speech, session: Session::default(), messages: system, args };
    let first = chat.messages.len();
    let mut editor = rustyline::DefaultEditor::new()?;
    eprintln!("{HELP}");
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // a history that cannot be kept is no reason to stop
        let _ = editor.add_history_entry(&line);
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(()),
            "/clear" => chat.messages.truncate(first),
            "/undo" => chat.messages.truncate(chat.messages.len().saturating_sub(2).max(first)),
            command if command.starts_with('/') => chat.command(command),
            text => chat.answer(text)?,
        }
    }
}

struct Chat<'a> {
    engine: Engine,
    speech: Speech,
    session: Session,
    messages: Vec<Value>,
    args: &'a ChatArgs,
}

impl Chat<'_> {
    /// Answers one message. What cannot be answered is said, and the conversation goes on without it.
    fn answer(&mut self, text: &str) -> Result<()> {
        self.messages.push(prompt::message("user", text));
        let sampling = prompt::sampling(&self.args.sampling)?;
        let request = Request {
            prompt: self.speech.chat(&self.messages)?,
            sampling,
            max_tokens: self.args.sampling.max_tokens,
            stop: self.args.sampling.stop.clone(),
            logprobs: None,
        };
        let mut printer =
            Printer { bar: model::bar(true, "prompt"), stream: true, logprobs: Vec::new(), failed: None };
        let answer = self.engine.generate(&mut self.session, &request, &self.speech.tokenizer, &mut printer);
        printer.bar.finish_and_clear();
        if let Some(error) = printer.failed {
            return Err(error);
        }
        match answer {
            Ok(answer) => {
                output::line("")?;
                if answer.stop == StopReason::Context {
                    eprintln!("(the context is full: /clear, or start with a larger --ctx)");
                }
                interrupt::clear();
                self.messages.push(prompt::message("assistant", &answer.text));
            }
            Err(error) => {
                eprintln!("error: {error}");
                self.messages.pop();
            }
        }
        Ok(())
    }

    fn command(&mut self, command: &str) {
        let done = match command.split_once(' ') {
            Some(("/save", path)) => {
                self.engine.save(&self.session.sequence, &self.session.tokens, path.trim().as_ref())
            }
            Some(("/restore", path)) => {
                self.engine.restore(path.trim().as_ref()).map(|(sequence, tokens)| {
                    let old = std::mem::replace(&mut self.session, Session { sequence, tokens });
                    self.engine.release(old.sequence);
                })
            }
            _ => {
                eprintln!("{command}: no such command. {HELP}");
                return;
            }
        };
        if let Err(error) = done {
            eprintln!("error: {error}");
        }
    }
}
