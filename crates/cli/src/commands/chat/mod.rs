//! `latent chat`: a conversation in the terminal, with a model in this process or of a server.

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
use super::speed::{answer_speed, speed};
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

/// Maximum bytes of a question that /edit puts into the line editor. Longer ones open $VISUAL or
/// $EDITOR.
const MAX_INLINE_EDIT_BYTES: usize = 600;

pub(super) fn run(args: &ChatArgs) -> Result<()> {
    // Clap ignores `requires` of a flag whose required flag conflicts with another given one.
    if args.server.url.is_none() && args.server.api_key_file.is_some() {
        return Err(UsageError("--api-key-file needs --url".into()).into());
    }
    // An unwritable file is reported before the conversation, not after it.
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
        let message = chat.load(path)?;
        chat.note(&message);
        // The flag of this call wins over the system message of the saved conversation.
        if let Some(system) = &system {
            chat.conversation.set_system(system);
        }
    }
    let mut input = LineSource::open(!args.no_history, &COMMANDS)?;
    if input.is_terminal() {
        chat.note(GREETING);
    }
    // The conversation is saved even if it ended with an error.
    let talked = chat.talk(&mut input);
    if let Some(path) = args.prompt_cache.written().filter(|_| chat.conversation.len() > 0) {
        let message = chat.partner.save(&chat.conversation, path)?;
        chat.note(&message);
    }
    talked
}

struct Chat<'a> {
    partner: Box<dyn Partner + 'a>,
    conversation: MessageList,
    screen: ChatScreen,
    stats: Stats,
    /// The last question if it was not answered: /regen asks it again.
    unanswered: Option<String>,
    /// Number of repeated answers. It is added to the seed, so that /regen gives another answer.
    again: u64,
    args: &'a ChatArgs,
}

impl Chat<'_> {
    /// Reads and answers until the end.
    fn talk(&mut self, input: &mut LineSource) -> Result<()> {
        let (mut pressed, mut asked, mut failed) = (false, 0, 0);
        let args = self.args;
        if let Some(first) = &args.prompt {
            asked += 1;
            failed += usize::from(!self.ask(first)?);
            // On a terminal Ctrl-C stopped the answer only. In a pipe it ends the command.
            if input.is_terminal() {
                interrupt::clear();
            }
        }
        loop {
            let line = match input.next()? {
                InputEvent::Line(line) => line,
                // As in Node's shell, the second Ctrl-C at an empty prompt leaves.
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
        // A script must see failed messages and commands in the exit code. A user at a terminal has
        // seen them.
        if failed > 0 && !input.is_terminal() {
            return Err(ReportedProblems(format!("{failed} of {asked} messages and commands failed")).into());
        }
        Ok(())
    }

    /// Prints a message that is not an answer, unless --quiet is given.
    fn note(&self, text: &str) {
        if !self.args.quiet {
            say(text);
        }
    }

    /// Asks a question; returns whether it was answered. If not, the conversation is unchanged and
    /// the question is kept for /regen.
    fn ask(&mut self, text: &str) -> Result<bool> {
        self.conversation.push("user", text);
        let answered = self.answer()?;
        if !answered {
            self.conversation.pop();
            self.unanswered = Some(text.to_owned());
        }
        Ok(answered)
    }

    /// Answers the last message; returns whether it was answered. If not, the reason is printed,
    /// and the message stays at the end.
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
                // Not `note`: --quiet does not hide errors.
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

    /// Adds up and prints the figures of an answer, and why it ended if that is not obvious.
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
        // A server reports the prompt's tokens in the last event, which is missing if the answer
        // was stopped.
        let read = match prompt {
            0 => String::new(),
            _ => format!("; prompt {new}, {:.1} t/s", speed(new, prompt_seconds)),
        };
        format!("[{tokens} tokens, {:.1} t/s{drafts}{read}{context}]", answer_speed(tokens, seconds))
    }

    /// Executes a command; returns whether it succeeded. The result or error is printed.
    fn command(&mut self, name: &str, rest: &str, input: &mut LineSource) -> Result<bool> {
        let done = match (name, rest) {
            ("/help" | "/?", _) => {
                commands::help();
                return Ok(true);
            }
            ("/clear", _) => {
                self.conversation.clear();
                self.unanswered = None;
                Ok("the conversation is cleared".to_owned())
            }
            // The guard removes the question. It is false if the conversation has none.
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
                    Ok(None) => Ok("nothing has changed".to_owned()),
                    Err(error) => Err(error),
                }
            }
            ("/undo" | "/regen" | "/edit", _) => Err(anyhow!("no question yet")),
            ("/system", text) => Ok(self.system(text)),
            ("/context" | "/tokens", _) => Ok(self.fullness()),
            ("/stats", _) => Ok(self.stats.text()),
            ("/save" | "/load" | "/restore", "") => Err(anyhow!("{name} needs a file name")),
            ("/save", file) => self.partner.save(&self.conversation, Path::new(file)),
            ("/load" | "/restore", file) => self.load(Path::new(file)),
            _ => Err(anyhow!(
                "unknown command {name}; /help lists the commands (to send a message that begins with /, \
                 type //)"
            )),
        };
        match &done {
            Ok(message) => self.note(message),
            Err(error) => say(&format!("error: {error:#}")),
        }
        Ok(done.is_ok())
    }

    /// Answers the last question again with another seed. The old answer stays if no new one
    /// arrives.
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

    /// The edited last question; `None` if it is unchanged. `text` replaces it without an editor.
    fn edited(&self, text: &str, input: &mut LineSource) -> Result<Option<String>> {
        if !text.is_empty() {
            return Ok(Some(text.to_owned()));
        }
        let question =
            self.unanswered.as_deref().or_else(|| self.conversation.question()).unwrap_or_default();
        // The line editor writes a text to the terminal unescaped, and a loaded conversation may
        // contain escape sequences of another author.
        let unsafe_text = matches!(printable_lines(question), Cow::Owned(_));
        let long = unsafe_text || question.len() > MAX_INLINE_EDIT_BYTES || question.lines().count() > 10;
        let edited = match editor_name().filter(|_| long && input.is_terminal()) {
            // Without an editor, the escaped text is edited in the line.
            Some(editor) => Some(edit_in_editor(&editor, question)?),
            None => input.edit(&printable_lines(question))?,
        };
        Ok(edited.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
    }

    /// Replaces the last question and asks it. If it is not answered, the old question stays with
    /// its answer.
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
                "the system message is removed".into()
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
            return format!("the server does not report its context size; {messages} messages");
        };
        let percent = used * 100 / context.max(1);
        let larger = self.partner.larger().map_or_else(String::new, |larger| format!("; {larger}"));
        format!("{used} of {context} tokens ({percent} %), {messages} messages{larger}")
    }

    /// Replaces this conversation by a saved one. If that fails, this one stays.
    fn load(&mut self, path: &Path) -> Result<String> {
        let quiet = self.args.quiet;
        let note = |text: &str| {
            if !quiet {
                say(text);
            }
        };
        let system = self.conversation.system().map(str::to_owned);
        let (conversation, message) = self.partner.load(path, &note)?;
        // A file without a conversation (saved by `run --raw`) starts a new one with the current
        // system message.
        let empty = conversation.messages().is_empty();
        self.conversation = if empty { MessageList::new(system.as_deref()) } else { conversation };
        // The question belongs to the replaced conversation.
        self.unanswered = None;
        Ok(message)
    }
}

/// Maximum bytes read back from the editor.
const MAX_EDITED_BYTES: u64 = 16 << 20;

/// The user's editor: $VISUAL, then $EDITOR.
fn editor_name() -> Option<String> {
    ["VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

/// Opens a text in an editor, whose command may have arguments.
fn edit_in_editor(editor: &str, text: &str) -> Result<String> {
    // `.md` selects the editor's Markdown mode. The file can be read only by its owner.
    let mut file = tempfile::Builder::new().prefix("latent-").suffix(".md").tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    let path = file.path();
    let mut command = if cfg!(unix) {
        let mut shell = Command::new("sh");
        // The shell expands `~`, quotes and arguments of the variable (`code --wait`), as git does.
        // The path is passed as $1, so it needs no quoting.
        shell.args(["-c", &format!("{editor} \"$1\""), "sh"]);
        shell
    } else {
        // Windows has no `sh`. A path with spaces needs a short name (PROGRA~1) there.
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
    // The path is opened again: vim and others replace the file instead of writing to it, and
    // `file` would still be the old one.
    let text = input_file::read_text(path, MAX_EDITED_BYTES)
        .context("the edited text cannot be read: nothing has changed")?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}
