//! The text of a message, in the parts that the client sent.

use serde_json::{Value, json};

/// The text of a message. Templates that accept a list get the parts, others the joined text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MessageText {
    parts: Vec<String>,
}

impl MessageText {
    /// Creates a text from parts. Empty parts are dropped.
    pub(crate) fn of_parts(mut parts: Vec<String>) -> MessageText {
        parts.retain(|part| !part.is_empty());
        MessageText { parts }
    }

    /// Inserts a prefix before the first part.
    pub(crate) fn prefixed(mut self, word: &str) -> MessageText {
        match self.parts.first_mut() {
            Some(first) => first.insert_str(0, word),
            None => self.parts.push(word.to_owned()),
        }
        self
    }

    /// Bytes of memory that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| size_of::<String>() + part.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The parts joined by newlines.
    pub(crate) fn joined(&self) -> String {
        // As in llama.cpp and vLLM. Without a separator, the last word of a part and the first of
        // the next would merge.
        self.parts.join("\n")
    }

    /// The parts without separators.
    pub(crate) fn concatenated(&self) -> String {
        // For a prefill: the model continues exactly the text that it has written.
        self.parts.concat()
    }

    /// The `content` of a template's message.
    pub(crate) fn content(&self, form: ContentForm) -> Value {
        let list = match form {
            ContentForm::Text => false,
            // A single part needs no list: a string is the form that templates handle best.
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
    /// A string only.
    #[default]
    Text,
    /// A string or a list of parts.
    TextOrList,
    /// A list of parts only. The template drops strings.
    List,
}
