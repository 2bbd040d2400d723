//! An answer while it is streamed: shown and collected.

use super::screen::ChatScreen;
use anyhow::Result;

/// Maximum tool calls of an answer.
const MAX_CALLS: usize = 1024;

/// A tool call.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReplyCall {
    pub(super) name: String,
    /// JSON text.
    pub(super) arguments: String,
}

/// An answer that is shown while it grows.
pub(super) struct Reply<'s> {
    screen: &'s mut ChatScreen,
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<ReplyCall>,
}

impl Reply<'_> {
    pub(super) fn new(screen: &mut ChatScreen) -> Reply<'_> {
        Reply { screen, reasoning: String::new(), content: String::new(), calls: Vec::new() }
    }

    pub(super) fn reasoning(&mut self, text: &str) -> Result<()> {
        self.reasoning.push_str(text);
        self.screen.reasoning(text)
    }

    pub(super) fn content(&mut self, text: &str) -> Result<()> {
        self.content.push_str(text);
        self.screen.content(text)
    }

    /// Adds to call `index`; its first part has the name.
    pub(super) fn call(&mut self, index: usize, name: &str, arguments: &str) -> Result<()> {
        // Indices are consecutive. Parts with any other index come from a faulty server and are
        // dropped.
        if index == self.calls.len() && index < MAX_CALLS {
            self.calls.push(ReplyCall { name: name.to_owned(), arguments: String::new() });
            self.screen.call(name)?;
        }
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        call.arguments.push_str(arguments);
        self.screen.arguments(arguments)
    }

    /// Bytes received.
    pub(super) fn len(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.name.len() + call.arguments.len());
        self.reasoning.len() + self.content.len() + calls.sum::<usize>()
    }

    /// Whether nothing was received.
    pub(super) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }

    /// The text kept in the conversation.
    pub(super) fn text(&self) -> String {
        // Tool calls are appended as text, because the chat runs no tools whose results could
        // follow.
        let calls = self.calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
        let text = (!self.content.is_empty()).then(|| self.content.clone());
        text.into_iter().chain(calls).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        self.screen.finish()
    }
}
