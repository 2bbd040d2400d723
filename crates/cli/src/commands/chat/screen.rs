//! Output of answers: rendered Markdown on a terminal, unchanged text in a pipe.

use crate::markdown::Markdown;
use crate::output;
use anyhow::Result;
use latent_types::printable_stream;
use std::io::{IsTerminal, stdout};

/// Part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyPart {
    Reasoning,
    Content,
    Call,
}

enum ScreenMode {
    /// Terminal: rendered Markdown, dimmed reasoning.
    Styled(Markdown),
    /// Terminal without styles (--plain, TERM=dumb).
    Plain,
    /// Pipe or file: the exact bytes of the answer and its calls, without reasoning.
    Piped,
}

/// Shows answers.
pub(super) struct ChatScreen {
    how: ScreenMode,
    part: Option<ReplyPart>,
    /// Whether the cursor is at the beginning of a row.
    fresh: bool,
}

impl ChatScreen {
    /// `plain`: `--plain` was given.
    pub(super) fn new(plain: bool) -> ChatScreen {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        // Emacs' M-x shell has TERM=dumb: it cannot move the cursor, so no row can be rewritten.
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        let how = if !stdout().is_terminal() {
            ScreenMode::Piped
        } else if plain || dumb {
            ScreenMode::Plain
        } else {
            // NO_COLOR is about colour only: bold and dim text stays.
            ScreenMode::Styled(Markdown::new(set("NO_COLOR").is_none()))
        };
        ChatScreen { how, part: None, fresh: true }
    }

    pub(super) fn reasoning(&mut self, text: &str) -> Result<()> {
        // A script wants the answer only.
        if text.is_empty() || matches!(self.how, ScreenMode::Piped) {
            return Ok(());
        }
        self.turn(ReplyPart::Reasoning)?;
        self.dim(text)
    }

    pub(super) fn content(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.turn(ReplyPart::Content)?;
        self.fresh = text.ends_with('\n');
        match &mut self.how {
            ScreenMode::Styled(markdown) => output::controls(&markdown.push(text, output::size())),
            ScreenMode::Plain | ScreenMode::Piped => output::stream(text),
        }
    }

    /// Begins a tool call.
    pub(super) fn call(&mut self, name: &str) -> Result<()> {
        self.turn(ReplyPart::Call)?;
        if !self.fresh {
            self.line()?;
        }
        self.dim(&format!("→ {name} "))
    }

    /// Appends arguments of the tool call.
    pub(super) fn arguments(&mut self, delta: &str) -> Result<()> {
        self.dim(delta)
    }

    /// Ends the answer. The cursor moves to the beginning of a row.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.leave()?;
        self.part = None;
        self.line()
    }

    /// Ends the previous part if this one is of another kind.
    fn turn(&mut self, part: ReplyPart) -> Result<()> {
        if self.part == Some(part) {
            return Ok(());
        }
        self.leave()?;
        let before = self.part.replace(part);
        let plain = matches!(self.how, ScreenMode::Plain);
        match before {
            // Without styles, a heading separates the answer from its reasoning.
            Some(ReplyPart::Reasoning) if plain => output::stream("\n[the answer]\n")?,
            Some(_) => {
                self.line()?;
                if part != ReplyPart::Call && !matches!(self.how, ScreenMode::Piped) {
                    self.line()?;
                }
            }
            None if plain && part == ReplyPart::Reasoning => output::stream("[the model thinks]\n")?,
            None => {}
        }
        self.fresh = true;
        Ok(())
    }

    /// Ends open Markdown blocks.
    fn leave(&mut self) -> Result<()> {
        match &mut self.how {
            ScreenMode::Styled(markdown) if self.part == Some(ReplyPart::Content) => {
                output::controls(&markdown.finish())
            }
            _ => Ok(()),
        }
    }

    fn line(&mut self) -> Result<()> {
        self.fresh = true;
        output::stream("\n")
    }

    fn dim(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.fresh = text.ends_with('\n');
        match self.how {
            ScreenMode::Styled(_) => {
                output::controls(&format!("\u{1b}[2m{}\u{1b}[0m", printable_stream(text)))
            }
            ScreenMode::Plain | ScreenMode::Piped => output::stream(text),
        }
    }
}
