//! Messages of a conversation: rendered into prompts, saved with the KV cache, and restored.

use super::prompt::{self, ChatFormatter};
use crate::exit::UsageError;
use anyhow::{Result, anyhow, bail};
use latent_formats::input_file;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Version of the saved format.
const VERSION: u64 = 1;

/// Maximum messages of a saved conversation.
const MAX_MESSAGES: usize = 100_000;

/// Maximum bytes of a file with messages.
const MAX_BYTES: u64 = 64 << 20;

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

    /// Adds an answer. Reasoning is a separate field, which templates read.
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

    /// Removes the last message.
    pub(super) fn pop(&mut self) {
        self.messages.pop();
    }

    /// Messages other than the system message.
    pub(super) fn len(&self) -> usize {
        self.messages.len() - self.first()
    }

    pub(super) fn system(&self) -> Option<&str> {
        let message = self.messages.first().filter(|message| role(message) == "system")?;
        message["content"].as_str()
    }

    /// Replaces the system message; an empty one removes it.
    pub(super) fn set_system(&mut self, text: &str) {
        let message = (!text.is_empty()).then(|| prompt::message("system", text));
        self.messages.splice(..self.first(), message);
    }

    /// Removes everything but the system message.
    pub(super) fn clear(&mut self) {
        self.messages.truncate(self.first());
    }

    /// Removes the last question and everything after it; returns whether it existed.
    pub(super) fn undo(&mut self) -> bool {
        let Some(at) = self.turns().last().copied() else { return false };
        self.messages.truncate(at);
        true
    }

    pub(super) fn has_question(&self) -> bool {
        !self.turns().is_empty()
    }

    /// Removes everything after the last question.
    pub(super) fn take_back_answer(&mut self) {
        if let Some(at) = self.turns().last() {
            self.messages.truncate(at + 1);
        }
    }

    /// Indices of the questions.
    fn turns(&self) -> Vec<usize> {
        (0..self.messages.len()).filter(|i| role(&self.messages[*i]) == "user").collect()
    }

    /// Number of turns (a question and its answer) that can be removed: all but the last one.
    pub(super) fn droppable(&self) -> usize {
        self.turns().len().saturating_sub(1)
    }

    /// The conversation without its `count` oldest turns.
    pub(super) fn without(&self, count: usize) -> MessageList {
        let first = self.first();
        // With 0, messages before the first question stay, such as a greeting of the assistant.
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

    /// Reads an attachment.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<MessageList> {
        let text = std::str::from_utf8(bytes).map_err(|_| anyhow!("it is not UTF-8 text"))?;
        let value = latent_formats::json::parse(text).map_err(|problem| anyhow!(problem))?;
        match value["version"].as_u64() {
            Some(VERSION) => {}
            Some(other) => bail!("it has version {other}; this program reads version {VERSION}"),
            None => bail!("it has no version"),
        }
        let Some(list) = value["messages"].as_array() else { bail!("it has no list of messages") };
        MessageList::checked(list)
    }

    fn checked(list: &[Value]) -> Result<MessageList> {
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

/// Checks a message and drops keys that templates do not read.
fn checked(message: &Value, place: usize) -> Result<Value> {
    let field = |name: &str| message.as_object().and_then(|m: &Map<String, Value>| m.get(name)?.as_str());
    let calls = message["tool_calls"].as_array().filter(|calls| !calls.is_empty());
    let content = match &message["content"] {
        Value::String(text) => Some(text.clone()),
        // OpenAI's clients send content as a list of parts, or null in a message with tool calls.
        Value::Array(parts) => Some(texts(parts)?),
        Value::Null if calls.is_some() => Some(String::new()),
        _ => None,
    };
    let (Some(role), Some(content)) = (field("role"), content) else {
        bail!("it has no role and content");
    };
    // OpenAI's newer name of the system role. Templates know only `system`.
    let role = if role == "developer" { "system" } else { role };
    if !ROLES.contains(&role) {
        bail!("its role is {role:?}, expected one of {}", ROLES.join(", "));
    }
    // [`MessageList::first`] and many templates expect it there.
    if role == "system" && place > 0 {
        bail!("a system message must be the first one");
    }
    let mut checked = prompt::message(role, &content);
    // Other keys are dropped: a file may hold anything, and templates would see it.
    for name in ["reasoning_content", "tool_call_id", "name"] {
        if let Some(text) = field(name) {
            checked[name] = text.into();
        }
    }
    if let Some(calls) = calls {
        checked["tool_calls"] = Value::Array(calls.iter().map(call).collect());
    }
    Ok(checked)
}

/// Joins the texts of a content in parts.
fn texts(parts: &[Value]) -> Result<String> {
    let text = |part: &Value| match part["type"].as_str() {
        Some("text") => part["text"].as_str().map(str::to_owned),
        _ => None,
    };
    let texts =
        parts.iter().map(|part| text(part).ok_or_else(|| anyhow!("a part of its content is not a text")));
    Ok(texts.collect::<Result<Vec<_>>>()?.concat())
}

/// A tool call with its arguments as an object: OpenAI's API has them as a string of JSON, but
/// templates iterate over an object.
fn call(call: &Value) -> Value {
    let mut call = call.clone();
    if let Some(arguments) = call["function"]["arguments"].as_str() {
        let parsed = latent_formats::json::parse(arguments).ok().filter(Value::is_object);
        if let Some(parsed) = parsed {
            call["function"]["arguments"] = parsed;
        }
    }
    call
}

/// Reads a conversation from a file: a list of messages, or an object with the key `messages`, such
/// as a request to OpenAI's API.
pub(super) fn read(path: &Path) -> Result<MessageList> {
    let text = input_file::read_text(path, MAX_BYTES)?;
    parse(&text).map_err(|problem| UsageError(format!("{}: {problem}", path.display())).into())
}

fn parse(text: &str) -> Result<MessageList> {
    // Notepad and PowerShell may write a byte-order mark, which JSON does not allow.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let value = latent_formats::json::parse(text).map_err(|problem| anyhow!("not valid JSON: {problem}"))?;
    let list = value.as_array().or_else(|| value["messages"].as_array());
    let list =
        list.ok_or_else(|| anyhow!("expected a list of messages, or an object with the list `messages`"))?;
    let messages = MessageList::checked(list)?;
    match messages.messages.last().map(role) {
        None => bail!("it has no message"),
        Some("user" | "tool") => Ok(messages),
        Some(other) => {
            bail!("the last message has role {other}, expected user or tool")
        }
    }
}

/// Number of tokens that every prompt of a conversation begins with. A context shift keeps them.
pub(super) fn kept_tokens(formatter: &ChatFormatter, conversation: &MessageList) -> Result<usize> {
    let mut start = conversation.clone();
    start.clear();
    let asking = |text: &str| {
        let mut asked = start.clone();
        asked.push("user", text);
        formatter.chat(asked.messages())
    };
    // The common prefix of two questions with different first characters: a template may put text
    // before the system message, so the tokens cannot be counted directly.
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
    fn undo_and_context_shift_remove_whole_turns() {
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
    fn saved_conversations_round_trip_and_others_are_refused() {
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

    #[test]
    fn messages_of_clients_are_read() {
        let list = r#"[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "2", "other": 3}]"#;
        let talk = parse(list).unwrap();
        assert_eq!(contents(&talk), ["Be brief.", "ab", "", "2"]);
        assert_eq!(talk.messages()[2]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
        assert_eq!(talk.messages()[3], json!({"role": "tool", "tool_call_id": "1", "content": "2"}));
        assert_eq!(parse(&format!(r#"{{"model": "x", "messages": {list}}}"#)).unwrap(), talk);
        assert_eq!(MessageList::from_bytes(&talk.to_bytes()).unwrap(), talk);
        for (text, word) in [
            ("", "not valid JSON"),
            ("7", "expected a list of messages"),
            ("[]", "it has no message"),
            (r#"[{"role": "assistant", "content": "a"}]"#, "the last message has role assistant"),
            (
                r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#,
                "message 1: a part of its content is not a text",
            ),
            (r#"[{"role": "user"}]"#, "message 1: it has no role and content"),
        ] {
            let problem = parse(text).unwrap_err().to_string();
            assert!(problem.contains(word), "{text}: {problem}");
        }
    }
}
