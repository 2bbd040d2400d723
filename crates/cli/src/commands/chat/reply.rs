//! An answer as it comes: what is shown of it, and what is kept.

use super::screen::ChatScreen;
use anyhow::Result;

/// Most tool calls of one answer.
const MAX_CALLS: usize = 1024;

/// A tool call.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ReplyCall {
    pub(super) name: String,
    /// JSON text.
    pub(super) arguments: String,
}

/// An answer that is shown as it grows.
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

    /// More of the call of this number, which begins with its name. What belongs to no call is left out.
    pub(super) fn call(&mut self, index: usize, name: &str, arguments: &str) -> Result<()> {
        if index == self.calls.len() && index < MAX_CALLS {
            self.calls.push(ReplyCall { name: name.to_owned(), arguments: String::new() });
            self.screen.call(name)?;
        }
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        call.arguments.push_str(arguments);
        self.screen.arguments(arguments)
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        let calls = self.calls.iter().map(|call| call.name.len() + call.arguments.len());
        self.reasoning.len() + self.content.len() + calls.sum::<usize>()
    }

    /// Whether nothing has come yet.
    pub(super) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }

    /// What is kept as the answer's text: calls stand below it as they are shown, since nothing is run that could answer them.
    pub(super) fn text(&self) -> String {
        let calls = self.calls.iter().map(|call| format!("{} {}", call.name, call.arguments));
        let text = (!self.content.is_empty()).then(|| self.content.clone());
        text.into_iter().chain(calls).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn finish(&mut self) -> Result<()> {
        self.screen.finish()
    }
}
