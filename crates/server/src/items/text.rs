//! The text of a message, in the parts in which a client has sent it.

use serde_json::{Value, json};

/// The text of a message. Templates that accept a list of parts are given its parts, others the parts joined by line ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MessageText {
    parts: Vec<String>,
}

impl MessageText {
    /// A text of parts. Empty ones are left out.
    pub(crate) fn of_parts(mut parts: Vec<String>) -> MessageText {
        parts.retain(|part| !part.is_empty());
        MessageText { parts }
    }

    /// The text after a word before its first part.
    pub(crate) fn prefixed(mut self, word: &str) -> MessageText {
        match self.parts.first_mut() {
            Some(first) => first.insert_str(0, word),
            None => self.parts.push(word.to_owned()),
        }
        self
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| size_of::<String>() + part.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The parts, joined by line ends as llama.cpp and vLLM do it: nothing else keeps the last word of one apart from the first of the next.
    pub(crate) fn joined(&self) -> String {
        self.parts.join("\n")
    }

    /// The parts without anything between them: a text that is continued is as the model has written it.
    pub(crate) fn concatenated(&self) -> String {
        self.parts.concat()
    }

    /// The content of a template's message.
    pub(crate) fn content(&self, form: ContentForm) -> Value {
        let list = match form {
            ContentForm::Text => false,
            ContentForm::TextOrList => self.parts.len() > 1,
            ContentForm::List => true,
        };
        if !list {
            return self.joined().into();
        }
        self.parts.iter().map(|text| json!({"type": "text", "text": text})).collect()
    }
}

impl From<&str> for MessageText {
    fn from(text: &str) -> MessageText {
        MessageText::from(text.to_owned())
    }
}

impl From<String> for MessageText {
    fn from(text: String) -> MessageText {
        MessageText::of_parts(vec![text])
    }
}

/// What a template accepts as the content of messages of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ContentForm {
    /// A text alone.
    #[default]
    Text,
    /// A text or a list of parts.
    TextOrList,
    /// A list of parts alone: texts would be lost.
    List,
}
