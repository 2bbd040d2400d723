//! The messages of a conversation: rendered into prompts, saved with the KV cache, and restored.

use super::prompt::{self, ChatFormatter};
use anyhow::{Result, anyhow, bail};
use serde_json::{Map, Value, json};

/// Version of the saved form.
const VERSION: u64 = 1;

/// Most messages of a saved conversation.
const MAX_MESSAGES: usize = 100_000;

/// Roles in a saved conversation.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

/// Messages in order; an optional system message comes first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MessageList {
    messages: Vec<Value>,
}

impl MessageList {
    pub(super) fn new(system: Option<&str>) -> MessageList {
        MessageList { messages: system.iter().map(|text| prompt::message("system", text)).collect() }
    }

    pub(super) fn messages(&self) -> &[Value] {
        &self.messages
    }

    pub(super) fn push(&mut self, role: &str, text: &str) {
        self.messages.push(prompt::message(role, text));
    }

    /// Adds an answer; reasoning is a separate field, which templates read.
    pub(super) fn push_answer(&mut self, text: &str, reasoning: &str) {
        self.push("assistant", text);
        if let Some(message) = self.messages.last_mut().filter(|_| !reasoning.is_empty()) {
            message["reasoning_content"] = reasoning.into();
        }
    }

    /// The text of the last question.
    pub(super) fn question(&self) -> Option<&str> {
        self.messages[*self.turns().last()?]["content"].as_str()
    }

    /// Takes the last message back.
    pub(super) fn pop(&mut self) {
        self.messages.pop();
    }

    /// Messages other than the system message.
    pub(super) fn len(&self) -> usize {
        self.messages.len() - self.first()
    }

    /// The system message.
    pub(super) fn system(&self) -> Option<&str> {
        let message = self.messages.first().filter(|message| role(message) == "system")?;
        message["content"].as_str()
    }

    /// Replaces the system message; an empty one removes it.
    pub(super) fn set_system(&mut self, text: &str) {
        let message = (!text.is_empty()).then(|| prompt::message("system", text));
        self.messages.splice(..self.first(), message);
    }

    /// Forgets everything but the system message.
    pub(super) fn clear(&mut self) {
        self.messages.truncate(self.first());
    }

    /// Takes back the last question and everything after it; whether there was one.
    pub(super) fn undo(&mut self) -> bool {
        let Some(at) = self.turns().last().copied() else { return false };
        self.messages.truncate(at);
        true
    }

    pub(super) fn has_question(&self) -> bool {
        !self.turns().is_empty()
    }

    /// Takes back everything after the last question.
    pub(super) fn take_back_answer(&mut self) {
        if let Some(at) = self.turns().last() {
            self.messages.truncate(at + 1);
        }
    }

    /// Indices of the questions.
    fn turns(&self) -> Vec<usize> {
        (0..self.messages.len()).filter(|i| role(&self.messages[*i]) == "user").collect()
    }

    /// Turns that can be left out: a question with what follows it, but not the last one.
    pub(super) fn droppable(&self) -> usize {
        self.turns().len().saturating_sub(1)
    }

    /// The same conversation without its `count` oldest turns.
    pub(super) fn without(&self, count: usize) -> MessageList {
        let first = self.first();
        let from = if count == 0 { first } else { self.turns().get(count).copied().unwrap_or(first) };
        let rest = self.messages[..first].iter().chain(&self.messages[from..]);
        MessageList { messages: rest.cloned().collect() }
    }

    /// Index of the first message after the system message.
    fn first(&self) -> usize {
        usize::from(self.messages.first().is_some_and(|message| role(message) == "system"))
    }

    /// The form attached to a saved KV cache.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        json!({"format": "latent conversation", "version": VERSION, "messages": self.messages})
            .to_string()
            .into_bytes()
    }

    /// Reads an attachment back.
    ///
    /// # Errors
    /// The problem.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<MessageList> {
        let text = std::str::from_utf8(bytes).map_err(|_| anyhow!("it is not UTF-8 text"))?;
        let value = latent_formats::json::parse(text).map_err(|problem| anyhow!(problem))?;
        match value["version"].as_u64() {
            Some(VERSION) => {}
            Some(other) => bail!("it has version {other}; this program reads version {VERSION}"),
            None => bail!("it has no version"),
        }
        let Some(list) = value["messages"].as_array() else { bail!("it has no list of messages") };
        if list.len() > MAX_MESSAGES {
            bail!("it has {} messages, more than {MAX_MESSAGES}", list.len());
        }
        let messages = list.iter().enumerate().map(|(i, message)| {
            checked(message, i).map_err(|problem| anyhow!("message {}: {problem}", i + 1))
        });
        Ok(MessageList { messages: messages.collect::<Result<_>>()? })
    }
}

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

/// A message of a saved conversation, without unknown keys.
fn checked(message: &Value, place: usize) -> Result<Value> {
    let field = |name: &str| message.as_object().and_then(|m: &Map<String, Value>| m.get(name)?.as_str());
    let (Some(role), Some(content)) = (field("role"), field("content")) else {
        bail!("it has no role and content");
    };
    if !ROLES.contains(&role) {
        bail!("its role is {role:?}, expected one of {}", ROLES.join(", "));
    }
    if role == "system" && place > 0 {
        bail!("a system message stands first");
    }
    let mut kept = prompt::message(role, content);
    if let Some(reasoning) = field("reasoning_content") {
        kept["reasoning_content"] = reasoning.into();
    }
    Ok(kept)
}

/// Number of tokens at the beginning of every prompt of a conversation, whatever the user says: a context shift keeps them.
pub(super) fn kept_tokens(formatter: &ChatFormatter, conversation: &MessageList) -> Result<usize> {
    let mut start = conversation.clone();
    start.clear();
    let asking = |text: &str| {
        let mut asked = start.clone();
        asked.push("user", text);
        formatter.chat(asked.messages())
    };
    // two questions that begin differently
    let (one, other) = (asking("A")?, asking("7")?);
    Ok(one.iter().zip(&other).take_while(|(a, b)| a == b).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk() -> MessageList {
        let mut talk = MessageList::new(Some("Be brief."));
        for (role, text) in
            [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2"), ("user", "three")]
        {
            talk.push(role, text);
        }
        talk
    }

    fn contents(talk: &MessageList) -> Vec<&str> {
        talk.messages().iter().map(|m| m["content"].as_str().unwrap()).collect()
    }

    #[test]
    fn turns_are_taken_back_and_left_out_whole() {
        let mut talk = talk();
        assert_eq!((talk.len(), talk.droppable(), talk.system()), (5, 2, Some("Be brief.")));
        assert_eq!(contents(&talk.without(0)), contents(&talk));
        assert_eq!(contents(&talk.without(1)), ["Be brief.", "two", "2", "three"]);
        assert_eq!(contents(&talk.without(2)), ["Be brief.", "three"]);
        assert!(talk.undo());
        talk.take_back_answer();
        assert_eq!(contents(&talk), ["Be brief.", "one", "1", "two"]);
        talk.set_system("");
        assert_eq!(contents(&talk), ["one", "1", "two"]);
        assert_eq!(contents(&talk.without(1)), ["two"]);
        talk.set_system("Be long.");
        assert!(talk.undo() && talk.undo() && !talk.undo() && !talk.has_question());
        assert_eq!((contents(&talk), talk.droppable()), (vec!["Be long."], 0));
    }

    #[test]
    fn what_is_saved_is_read_back_and_nothing_else() {
        let mut talk = talk();
        assert_eq!(talk.question(), Some("three"));
        talk.push_answer("3", "Two and one.");
        assert_eq!(MessageList::from_bytes(&talk.to_bytes()).unwrap(), talk);
        let refused = |text: &str| MessageList::from_bytes(text.as_bytes()).unwrap_err().to_string();
        for (text, word) in [
            ("", "JSON"),
            ("[1]", "version"),
            (r#"{"version": 2, "messages": []}"#, "version 2"),
            (r#"{"version": 1}"#, "no list"),
            (r#"{"version": 1, "messages": [7]}"#, "message 1"),
            (r#"{"version": 1, "messages": [{"role": "user", "content": null}]}"#, "message 1"),
            (r#"{"version": 1, "messages": [{"role": "root", "content": ""}]}"#, "root"),
            (
                r#"{"version": 1, "messages": [{"role": "user", "content": ""}, {"role": "system", "content": ""}]}"#,
                "message 2",
            ),
        ] {
            assert!(refused(text).contains(word), "{text}: {}", refused(text));
        }
        assert!(MessageList::from_bytes(&[0xff]).unwrap_err().to_string().contains("UTF-8"));
    }
}
