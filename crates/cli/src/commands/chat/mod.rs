//! `latent chat`: a conversation in the terminal, with a model of this process or a server's.

mod chunks;
mod commands;
mod file;
mod history;
mod input;
mod local;
mod partner;
mod remote;
mod reply;
mod screen;
mod stats;

use super::chat_options::system_message;
use super::conversation::MessageList;
use super::printer::{answer_speed, speed};
use crate::args::ChatArgs;
use crate::exit::{ReportedProblems, UsageError};
use crate::interrupt;
use crate::output::say;
use anyhow::{Context, Result, anyhow, bail};
use commands::{COMMANDS, GREETING, LineRequest};
use input::{InputEvent, LineSource};
use latent_formats::{OutputFile, input_file};
use latent_types::printable_lines;
use partner::{AnswerAttempt, ChatAnswer, ChatQuestion, Partner, ReplyEnding, ReplyFigures};
use screen::ChatScreen;
use stats::Stats;
use std::borrow::Cow;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Longest question that /edit puts into the line editor, in bytes; longer ones go to the user's own.
const LINE: usize = 600;

pub(super) fn run(args: &ChatArgs) -> Result<()> {
    // clap does not look at what a flag requires if that excludes another one
    if args.server.url.is_none() && args.server.api_key_file.is_some() {
        return Err(UsageError("--api-key-file needs --url".into()).into());
    }
    if let Some(path) = args.prompt_cache.written() {
        OutputFile::check(path)?;
    }
    let system = system_message(&args.template)?;
    let conversation = MessageList::new(system.as_deref());
    let partner: Box<dyn Partner + '_> = match &args.server.url {
        Some(url) => Box::new(remote::RemotePartner::open(url, args)?),
        None => Box::new(local::LocalPartner::open(args, &conversation)?),
    };
    let mut chat = Chat {
        partner,
        conversation,
        screen: ChatScreen::new(args.plain),
        stats: Stats::default(),
        unanswered: None,
        again: 0,
        args,
    };
    if let Some(path) = args.prompt_cache.read() {
        let said = chat.load(path)?;
        chat.note(&said);
        if let Some(system) = &system {
            chat.conversation.set_system(system);
        }
    }
    let mut input = LineSource::open(!args.no_history, &COMMANDS)?;
    if input.is_terminal() {
        chat.note(GREETING);
    }
    let talked = chat.talk(&mut input);
    if let Some(path) = args.prompt_cache.written().filter(|_| chat.conversation.len() > 0) {
        let said = chat.partner.save(&chat.conversation, path)?;
        chat.note(&said);
    }
    talked
}

struct Chat<'a> {
    partner: Box<dyn Partner + 'a>,
    conversation: MessageList,
    screen: ChatScreen,
    stats: Stats,
    /// The last question, if nothing came of it: /regen asks it again.
    unanswered: Option<String>,
    /// How often questions were answered again: each time with another seed.
    again: u64,
    args: &'a ChatArgs,
}

impl Chat<'_> {
    /// Reads and answers until the end. Where no terminal is there to correct anything, what failed is counted.
    fn talk(&mut self, input: &mut LineSource) -> Result<()> {
        let (mut pressed, mut asked, mut failed) = (false, 0, 0);
        let args = self.args;
        if let Some(first) = &args.prompt {
            asked += 1;
            failed += usize::from(!self.ask(first)?);
            if input.is_terminal() {
                interrupt::clear();
            }
        }
        loop {
            let line = match input.next()? {
                InputEvent::Line(line) => line,
                InputEvent::Interrupted { empty: true } if pressed => return Ok(()),
                InputEvent::Interrupted { empty } => {
                    pressed = empty;
                    if empty {
                        say("(press Ctrl-C again to leave)");
                    }
                    continue;
                }
                InputEvent::End => break,
            };
            pressed = false;
            let done = match LineRequest::of(&line) {
                LineRequest::Nothing => continue,
                LineRequest::Command("/quit" | "/exit" | "/bye", _) => break,
                LineRequest::Command(name, rest) => self.command(name, rest, input)?,
                LineRequest::Message(text) => self.ask(text)?,
            };
            asked += 1;
            failed += usize::from(!done);
            if input.is_terminal() {
                interrupt::clear();
            } else if interrupt::asked() {
                return Ok(());
            }
        }
        if failed > 0 && !input.is_terminal() {
            return Err(ReportedProblems(format!("{failed} of {asked} messages and commands failed")).into());
        }
        Ok(())
    }

    /// Says what is not an answer, unless only answers are wanted.
    fn note(&self, text: &str) {
        if !self.args.quiet {
            say(text);
        }
    }

    /// Puts a question behind the conversation; whether it was answered. If not, the conversation is as it was, and the question is kept.
    fn ask(&mut self, text: &str) -> Result<bool> {
        self.conversation.push("user", text);
        let answered = self.answer()?;
        if !answered {
            self.conversation.pop();
            self.unanswered = Some(text.to_owned());
        }
        Ok(answered)
    }

    /// Answers the last message; whether it did. If not, that is said, and the message still stands at the end.
    fn answer(&mut self) -> Result<bool> {
        self.unanswered = None;
        let quiet = self.args.quiet;
        let note = |text: &str| {
            if !quiet {
                say(text);
            }
        };
        let question = ChatQuestion {
            conversation: &mut self.conversation,
            again: self.again,
            screen: &mut self.screen,
            note: &note,
        };
        match self.partner.answer(question)? {
            AnswerAttempt::Answered(answered) => {
                self.conversation.push_answer(&answered.text, &answered.reasoning);
                self.after(&answered);
                Ok(true)
            }
            AnswerAttempt::Failed(problem) => {
                say(&format!("error: {problem}"));
                self.note("(the conversation is unchanged; /regen asks again)");
                Ok(false)
            }
            AnswerAttempt::Stopped => {
                self.note("(stopped before the answer began; the conversation is unchanged)");
                Ok(false)
            }
        }
    }

    /// What is said after an answer: why it ended, where that is not plain, and its figures.
    fn after(&mut self, answered: &ChatAnswer) {
        match &answered.ending {
            ReplyEnding::Full(ways) => {
                say(&format!("(the context is full, so the answer is incomplete: {ways})"))
            }
            ReplyEnding::Broken(problem) => {
                say(&format!("error: {problem}"));
                self.note("(the partial answer is kept; /regen asks again)");
            }
            ReplyEnding::Length => self.note("(ended by -n)"),
            ReplyEnding::Stopped => self.note("(stopped)"),
            ReplyEnding::Whole => {}
        }
        let figures = &answered.figures;
        if figures.discarded > 0 {
            let n = figures.discarded;
            self.note(&format!("(the context was full: {n} older tokens were dropped)"));
        }
        self.stats.add(figures);
        self.note(&self.figures(figures));
    }

    fn figures(&self, figures: &ReplyFigures) -> String {
        let &ReplyFigures { prompt, cached, tokens, prompt_seconds, seconds, drafted, accepted, .. } =
            figures;
        let new = prompt.saturating_sub(cached);
        let drafts =
            if drafted == 0 { String::new() } else { format!(", {accepted} of {drafted} drafts accepted") };
        let context = match self.partner.context() {
            Some((used, all)) => format!("; context {used} of {all}"),
            None => String::new(),
        };
        // a server whose answer was stopped has not said what its prompt took
        let read = match prompt {
            0 => String::new(),
            _ => format!("; prompt {new}, {:.1} t/s", speed(new, prompt_seconds)),
        };
        format!("[{tokens} tokens, {:.1} t/s{drafts}{read}{context}]", answer_speed(tokens, seconds))
    }

    /// Follows a command; whether it could. What it did, or why not, is said.
    fn command(&mut self, name: &str, rest: &str, input: &mut LineSource) -> Result<bool> {
        let done = match (name, rest) {
            ("/help" | "/?", _) => {
                commands::help();
                return Ok(true);
            }
            ("/clear", _) => {
                self.conversation.clear();
                self.unanswered = None;
                Ok("the conversation is forgotten".to_owned())
            }
            ("/undo", _) if self.conversation.undo() => {
                Ok(format!("removed the last question; {}", self.left()))
            }
            ("/regen", _) if self.unanswered.is_some() => {
                let question = self.unanswered.take().unwrap_or_default();
                return self.ask(&question);
            }
            ("/regen", _) if self.conversation.has_question() => return self.regenerate(),
            ("/edit", text) if self.unanswered.is_some() || self.conversation.has_question() => {
                match self.edited(text, input) {
                    Ok(Some(question)) => return self.ask_instead(&question),
                    Ok(None) => Ok("nothing is changed".to_owned()),
                    Err(error) => Err(error),
                }
            }
            ("/undo" | "/regen" | "/edit", _) => Err(anyhow!("no question yet")),
            ("/system", text) => Ok(self.system(text)),
            ("/context" | "/tokens", _) => Ok(self.fullness()),
            ("/stats", _) => Ok(self.stats.text()),
            ("/save" | "/load" | "/restore", "") => Err(anyhow!("{name} needs the name of a file")),
            ("/save", file) => self.partner.save(&self.conversation, Path::new(file)),
            ("/load" | "/restore", file) => self.load(Path::new(file)),
            _ => Err(anyhow!(
                "{name}: no such command; /help lists them, and a message that begins with a slash is written with two"
            )),
        };
        match &done {
            Ok(said) => self.note(said),
            Err(error) => say(&format!("error: {error:#}")),
        }
        Ok(done.is_ok())
    }

    /// Answers the last question again, with another seed. The old answer stays if no new one arrives.
    fn regenerate(&mut self) -> Result<bool> {
        let before = self.conversation.clone();
        self.conversation.take_back_answer();
        self.again += 1;
        let answered = self.answer()?;
        if !answered {
            self.conversation = before;
        }
        Ok(answered)
    }

    /// The last question as the user wants it; none if it is to stay. `text` replaces it at once.
    fn edited(&self, text: &str, input: &mut LineSource) -> Result<Option<String>> {
        if !text.is_empty() {
            return Ok(Some(text.to_owned()));
        }
        let question =
            self.unanswered.as_deref().or_else(|| self.conversation.question()).unwrap_or_default();
        // the line editor shows a text as it is, and that of a loaded conversation may be anyone's
        let unsafe_text = matches!(printable_lines(question), Cow::Owned(_));
        let long = unsafe_text || question.len() > LINE || question.lines().count() > 10;
        let edited = match editor_name().filter(|_| long && input.is_terminal()) {
            Some(editor) => Some(edit_in_editor(&editor, question)?),
            None => input.edit(&printable_lines(question))?,
        };
        Ok(edited.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
    }

    /// Asks another question in the place of the last one. Where it is not answered, the old one stays with its answer.
    fn ask_instead(&mut self, question: &str) -> Result<bool> {
        let before = self.conversation.clone();
        if self.unanswered.take().is_none() {
            self.conversation.undo();
        }
        let answered = self.ask(question)?;
        if !answered {
            self.conversation = before;
        }
        Ok(answered)
    }

    fn left(&self) -> String {
        match self.conversation.len() {
            1 => "1 message is left".into(),
            n => format!("{n} messages are left"),
        }
    }

    fn system(&mut self, text: &str) -> String {
        match text {
            "" => match self.conversation.system() {
                Some(system) => format!("the system message is: {system}"),
                None => "no system message is set".into(),
            },
            "-" => {
                self.conversation.set_system("");
                "the system message is taken away".into()
            }
            text => {
                self.conversation.set_system(text);
                "the system message is set".into()
            }
        }
    }

    fn fullness(&self) -> String {
        let messages = self.conversation.messages().len();
        let Some((used, context)) = self.partner.context() else {
            return format!("the server does not say how many tokens its context has; {messages} messages");
        };
        let percent = used * 100 / context.max(1);
        let larger = self.partner.larger().map_or_else(String::new, |larger| format!("; {larger}"));
        format!("{used} of {context} tokens ({percent} %), {messages} messages{larger}")
    }

    /// Takes a saved conversation in the place of this one, which stays where that fails.
    fn load(&mut self, path: &Path) -> Result<String> {
        let quiet = self.args.quiet;
        let note = |text: &str| {
            if !quiet {
                say(text);
            }
        };
        let system = self.conversation.system().map(str::to_owned);
        let (conversation, said) = self.partner.load(path, &note)?;
        // a file without a conversation begins a new one, with the present system message
        let empty = conversation.messages().is_empty();
        self.conversation = if empty { MessageList::new(system.as_deref()) } else { conversation };
        self.unanswered = None;
        Ok(said)
    }
}

/// Longest text that is read back, in bytes.
const MAX_EDITED_BYTES: u64 = 16 << 20;

/// The editor that the environment names.
fn editor_name() -> Option<String> {
    ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

/// Lets the user edit a text with the editor of this name, which may have arguments.
fn edit_in_editor(editor: &str, text: &str) -> Result<String> {
    let mut file = tempfile::Builder::new().prefix("latent-").suffix(".md").tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    let path = file.path();
    let mut command = if cfg!(unix) {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{editor} \"$1\""), "sh"]);
        shell
    } else {
        let mut words = editor.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or(editor));
        command.args(words);
        command
    };
    let status = interrupt::lend_terminal(command.arg(path))
        .with_context(|| format!("cannot start the editor {editor:?}"))?;
    if !status.success() {
        bail!("the editor {editor:?} failed ({status}); the question is unchanged");
    }
    // editors may write a new file in the old one's place
    let text = input_file::read_text(path, MAX_EDITED_BYTES)
        .context("the edited text cannot be read: nothing is changed")?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}
