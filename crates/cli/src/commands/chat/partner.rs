//! Who answers: a model of this process, or a server's.

use super::screen::ChatScreen;
use crate::commands::conversation::MessageList;
use anyhow::Result;
use std::path::Path;

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplyEnding {
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
pub(super) struct ReplyFigures {
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
pub(super) struct ChatQuestion<'a> {
    /// Its oldest turns may be left out if its context is full.
    pub(super) conversation: &'a mut MessageList,
    /// How often questions were answered again, each time with another seed.
    pub(super) again: u64,
    /// Shows the answer as it comes.
    pub(super) screen: &'a mut ChatScreen,
    /// Says what else there is to say.
    pub(super) note: &'a dyn Fn(&str),
}

pub(super) struct ChatAnswer {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) ending: ReplyEnding,
    pub(super) figures: ReplyFigures,
}

/// What became of a question.
pub(super) enum AnswerAttempt {
    Answered(ChatAnswer),
    /// Nothing came: why, and what to do.
    Failed(String),
    /// It was stopped before anything came.
    Stopped,
}

/// Answers, and keeps what answering needs.
pub(super) trait Partner {
    /// Answers the last message of a conversation.
    fn answer(&mut self, question: ChatQuestion<'_>) -> Result<AnswerAttempt>;

    /// How full the context is: tokens in use and all, where that is known.
    fn context(&self) -> Option<(usize, usize)>;

    /// A larger context, where there can be one.
    fn larger(&self) -> Option<String>;

    /// Saves a conversation; what was saved.
    fn save(&mut self, conversation: &MessageList, path: &Path) -> Result<String>;

    /// Reads a saved conversation; what was read.
    fn load(&mut self, path: &Path, note: &dyn Fn(&str)) -> Result<(MessageList, String)>;
}
