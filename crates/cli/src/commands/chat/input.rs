//! Sources of messages: the line editor on a terminal, or lines of standard input.

use super::history::ChatHistory;
use crate::interrupt;
use anyhow::{Result, bail};
use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Behavior, Config, error::ReadlineError};
use rustyline::{
    Cmd, ConditionalEventHandler, Context, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, RepeatCount,
};
use std::cell::Cell;
use std::collections::HashSet;
use std::io::{BufRead, IsTerminal, Read, StdinLock, stdin, stdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) enum InputEvent {
    /// A message or command.
    Line(String),
    /// Ctrl-C. The line being typed is discarded.
    Interrupted {
        /// Whether nothing was typed.
        empty: bool,
    },
    End,
}

/// Maximum bytes of a message from a pipe, so that an endless line cannot fill the memory.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Maximum entries of the history.
pub(super) const MAX_HISTORY_ENTRIES: usize = 1000;

pub(super) enum LineSource {
    Terminal(Box<TerminalInput>),
    Pipe(StdinLock<'static>),
}

impl LineSource {
    /// Opens a line editor that completes `commands` if standard input is a terminal. `history`:
    /// whether to keep a history.
    pub(super) fn open(history: bool, commands: &'static [&'static str]) -> Result<LineSource> {
        if !stdin().is_terminal() {
            return Ok(LineSource::Pipe(stdin().lock()));
        }
        // With `latent chat > file` lines are edited on /dev/tty, and only answers go to the file.
        let behavior = if stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().max_history_size(MAX_HISTORY_ENTRIES)?.history_ignore_dups(true)?;
        let config = config.behavior(behavior).build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(LineHelper { commands, empty: Cell::new(true) }));
        let ended = EndedLines::default();
        let newline = |code, modifiers| (KeyEvent(code, modifiers), EventHandler::from(Cmd::Newline));
        for (key, handler) in [
            // Terminals send the same byte for Enter and Shift-Enter by default, so a new line
            // needs other keys. Alt-Enter arrives as ESC CR. Windows Terminal uses it for full
            // screen, so Ctrl-J works, too.
            newline(KeyCode::Enter, Modifiers::ALT),
            newline(KeyCode::Char('J'), Modifiers::CTRL),
            (
                KeyEvent(KeyCode::Enter, Modifiers::NONE),
                EventHandler::Conditional(Box::new(Backslash(Arc::clone(&ended)))),
            ),
        ] {
            editor.bind_sequence(key, handler);
        }
        let history = if history { ChatHistory::open(editor.history_mut()) } else { None };
        Ok(LineSource::Terminal(Box::new(TerminalInput { editor, history, ended })))
    }

    /// Lets the user edit a text; `None` if the user cancels.
    pub(super) fn edit(&mut self, text: &str) -> Result<Option<String>> {
        let _at_once = interrupt::at_once();
        match self {
            LineSource::Terminal(terminal) => match terminal.read(text)? {
                InputEvent::Line(line) => Ok(Some(line)),
                InputEvent::Interrupted { .. } | InputEvent::End => Ok(None),
            },
            LineSource::Pipe(_) => bail!("without a terminal, /edit needs the new text: /edit TEXT"),
        }
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, LineSource::Terminal(_))
    }

    pub(super) fn next(&mut self) -> Result<InputEvent> {
        // Nothing needs cleanup while waiting for input. On a terminal, rustyline's raw mode
        // delivers Ctrl-C as a key.
        let _at_once = interrupt::at_once();
        match self {
            LineSource::Terminal(terminal) => terminal.read(""),
            LineSource::Pipe(lines) => piped(lines),
        }
    }
}

/// A line editor.
pub(super) struct TerminalInput {
    editor: Editor<LineHelper, FileHistory>,
    history: Option<ChatHistory>,
    ended: EndedLines,
}

impl TerminalInput {
    /// Reads the next line. The editor begins with `text`.
    fn read(&mut self, text: &str) -> Result<InputEvent> {
        if let Some(help) = self.editor.helper() {
            help.empty.set(true);
        }
        // Lines of an earlier message must not decide about backslashes of this one.
        lock(&self.ended).clear();
        match self.editor.readline_with_initial("> ", (text, "")) {
            Ok(line) => {
                let line = joined(&line, &lock(&self.ended));
                let added = self.editor.add_history_entry(&line).unwrap_or(false);
                if let Some(history) = self.history.as_ref().filter(|_| added) {
                    history.append(self.editor.history_mut());
                }
                Ok(InputEvent::Line(line))
            }
            Err(ReadlineError::Interrupted) => {
                let empty = self.editor.helper().is_none_or(|help| help.empty.get());
                Ok(InputEvent::Interrupted { empty })
            }
            Err(ReadlineError::Eof) => Ok(InputEvent::End),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads a message from standard input. A line that ends with a backslash is continued in the next
/// one.
fn piped(lines: &mut impl BufRead) -> Result<InputEvent> {
    let mut bytes = Vec::new();
    loop {
        let left = MAX_LINE_BYTES - bytes.len() as u64;
        let read = lines.by_ref().take(left).read_until(b'\n', &mut bytes)?;
        // `take` cut the line.
        if read as u64 == left && bytes.last() != Some(&b'\n') {
            bail!("standard input: a message has more than {MAX_LINE_BYTES} bytes");
        }
        if read == 0 {
            // End of the input, possibly behind a backslash.
            if bytes.is_empty() {
                return Ok(InputEvent::End);
            }
            break;
        }
        let ends = bytes.last() == Some(&b'\n');
        if ends {
            bytes.pop();
            // Files from Windows end lines with CR LF.
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if ends && bytes.last() == Some(&b'\\') {
            bytes.pop();
            bytes.push(b'\n');
            continue;
        }
        break;
    }
    match String::from_utf8(bytes) {
        // A piped file may begin with a byte-order mark (Notepad, PowerShell).
        Ok(line) => Ok(InputEvent::Line(line.strip_prefix('\u{feff}').map_or(line.clone(), str::to_owned))),
        Err(_) => bail!("standard input is not UTF-8 text"),
    }
}

/// Key handler: Enter behind a backslash begins a new line.
// The backslash stays visible while the message is edited: a rustyline command cannot replace it
// and move the cursor in one step. `joined` removes it from lines that were ended this way, and
// keeps it in lines that were pasted (shell commands with continuations).
struct Backslash(EndedLines);

/// Lines that were ended with a backslash and Enter.
type EndedLines = Arc<Mutex<HashSet<String>>>;

fn lock(ended: &EndedLines) -> MutexGuard<'_, HashSet<String>> {
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ConditionalEventHandler for Backslash {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let before = context.line().get(..context.pos())?;
        let line = before.rsplit('\n').next().filter(|line| line.ends_with('\\'))?;
        lock(&self.0).insert(line.to_owned());
        Some(Cmd::Newline)
    }
}

/// The message without the backslashes that ended its lines.
fn joined(message: &str, ended: &HashSet<String>) -> String {
    let plain = |line: &str| match line.strip_suffix('\\') {
        Some(plain) if ended.contains(line) => plain.to_owned(),
        _ => line.to_owned(),
    };
    let Some((lines, last)) = message.rsplit_once('\n') else { return message.to_owned() };
    let mut joined: String = lines.split('\n').map(|line| plain(line) + "\n").collect();
    joined.push_str(last);
    joined
}

/// Completes commands and records whether the line is empty.
struct LineHelper {
    commands: &'static [&'static str],
    empty: Cell<bool>,
}

impl Hinter for LineHelper {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        // rustyline's error for Ctrl-C does not contain the line. The hinter sees the line after
        // every key, so the state is recorded here.
        self.empty.set(line.is_empty());
        None
    }
}

impl Completer for LineHelper {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..at).unwrap_or_default();
        // Tab in a message must not insert anything.
        if !typed.starts_with('/') {
            return Ok((at, Vec::new()));
        }
        let fits = self.commands.iter().filter(|command| command.starts_with(typed));
        Ok((0, fits.map(|command| (*command).to_owned()).collect()))
    }
}

impl Highlighter for LineHelper {}
impl Validator for LineHelper {}
impl Helper for LineHelper {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piped_lines_are_messages_and_a_backslash_joins_them() {
        let mut lines = &b"one\r\n\ntwo \\\nlines\\\\\n \\\n\nlast"[..];
        let mut found = Vec::new();
        while let InputEvent::Line(line) = piped(&mut lines).unwrap() {
            found.push(line);
        }
        assert_eq!(found, ["one", "", "two \nlines\\\n \n", "last"]);
        assert!(piped(&mut &b"\xff\n"[..]).is_err());
        assert!(
            matches!(piped(&mut &b"open \\\n"[..]).unwrap(), InputEvent::Line(line) if line == "open \n")
        );
    }

    #[test]
    fn typed_continuations_are_removed_and_pasted_ones_stay() {
        let ended = HashSet::from(["first\\".to_owned()]);
        assert_eq!(joined("first\\\ncc -o x \\\n  x.c\\", &ended), "first\ncc -o x \\\n  x.c\\");
        assert_eq!(joined("first\\", &ended), "first\\");
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut endless = std::io::BufReader::new(std::io::repeat(b'a'));
        assert!(piped(&mut endless).is_err());
        let mut backslashes = std::io::repeat(b'a').take(MAX_LINE_BYTES - 1).chain(&b"\n"[..]);
        assert!(piped(&mut std::io::BufReader::new(&mut backslashes)).is_ok());
    }
}
