//! The interface of models that answer: in this process, or of a server.

use super::screen::ChatScreen;
use crate::commands::conversation::MessageList;
use anyhow::Result;
use std::path::Path;

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReplyEnding {
    /// The model ended it.
    Whole,
    /// The limit of -n.
    Length,
    /// Ctrl-C.
    Stopped,
    /// The context is full. Holds what the user can do.
    Full(String),
    /// It broke off. Holds the reason.
    Broken(String),
}

/// Token counts and times of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReplyFigures {
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Prompt tokens found in the cache.
    pub(super) cached: usize,
    /// Tokens of the answer.
    pub(super) tokens: usize,
    pub(super) prompt_seconds: f64,
    pub(super) seconds: f64,
    /// Tokens dropped by a context shift during the answer.
    pub(super) discarded: usize,
    pub(super) drafted: usize,
    pub(super) accepted: usize,
}

/// A question and where its answer goes.
pub(super) struct ChatQuestion<'a> {
    /// The oldest turns may be removed if the context is full.
    pub(super) conversation: &'a mut MessageList,
    /// Number of repeated answers, added to the seed.
    pub(super) again: u64,
    /// Shows the answer while it is generated.
    pub(super) screen: &'a mut ChatScreen,
    /// Prints messages other than the answer.
    pub(super) note: &'a dyn Fn(&str),
}

pub(super) struct ChatAnswer {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) ending: ReplyEnding,
    pub(super) figures: ReplyFigures,
}

/// The result of a question.
pub(super) enum AnswerAttempt {
    Answered(ChatAnswer),
    /// No answer. Holds the reason and what to do.
    Failed(String),
    /// Stopped before the answer began.
    Stopped,
}

/// Answers questions.
pub(super) trait Partner {
    /// Answers the last message of a conversation.
    fn answer(&mut self, question: ChatQuestion<'_>) -> Result<AnswerAttempt>;

    /// Tokens in use and size of the context, if known.
    fn context(&self) -> Option<(usize, usize)>;

    /// How to get a larger context, if possible.
    fn larger(&self) -> Option<String>;

    /// Saves a conversation; returns a message about it.
    fn save(&mut self, conversation: &MessageList, path: &Path) -> Result<String>;

    /// Reads a saved conversation; returns it and a message about it.
    fn load(&mut self, path: &Path, note: &dyn Fn(&str)) -> Result<(MessageList, String)>;
}
