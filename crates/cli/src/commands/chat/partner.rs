//! Who answers: a model of this process, or a server's.

use super::screen::Screen;
use crate::commands::conversation::Conversation;
use anyhow::Result;
use std::path::Path;

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ending {
    /// As the model wanted.
    Whole,
    /// By -n.
    Length,
    /// By Ctrl-C.
    Stopped,
    /// The context is full: what can be done.
    Full(String),
    /// It broke off: why.
    Broken(String),
}

/// What an answer took.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Figures {
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Those of them that were in the cache.
    pub(super) cached: usize,
    /// Tokens of the answer.
    pub(super) tokens: usize,
    pub(super) prompt_seconds: f64,
    pub(super) seconds: f64,
    /// Tokens that an answer's context shift left out.
    pub(super) discarded: usize,
    pub(super) drafted: usize,
    pub(super) accepted: usize,
}

/// What is to be answered.
pub(super) struct Question<'a> {
    /// Its oldest turns may be left out if its context is full.
    pub(super) conversation: &'a mut Conversation,
    /// How often questions were answered again, each time with another seed.
    pub(super) again: u64,
    /// Shows the answer as it comes.
    pub(super) screen: &'a mut Screen,
    /// Says what else there is to say.
    pub(super) note: &'a dyn Fn(&str),
}

/// An answer.
pub(super) struct Answered {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) ending: Ending,
    pub(super) figures: Figures,
}

/// What became of a question.
pub(super) enum Attempt {
    Answered(Answered),
    /// Nothing came: why, and what to do.
    Failed(String),
    /// It was stopped before anything came.
    Stopped,
}

/// Answers, and keeps what answering needs.
pub(super) trait Partner {
    /// Answers the last message of a conversation.
    ///
    /// # Errors
    /// When standard output is gone.
    fn answer(&mut self, question: Question<'_>) -> Result<Attempt>;

    /// How full the context is: tokens in use and all, where that is known.
    fn context(&self) -> Option<(usize, usize)>;

    /// A larger context, where there can be one.
    fn larger(&self) -> Option<String>;

    /// Saves a conversation; what was saved.
    fn save(&mut self, conversation: &Conversation, path: &Path) -> Result<String>;

    /// Reads a saved conversation; what was read.
    fn load(&mut self, path: &Path, note: &dyn Fn(&str)) -> Result<(Conversation, String)>;
}
