//! Tool calls that are JSON objects with name and arguments, or lists of such objects:
//! `{"name": …, "arguments": …}`.
//!
//! Hermes, Mistral before v11, GigaChat-3 and many others write calls like this. Keys can come in
//! any order, and the arguments are streamed as soon as the name is known.

use super::arguments::{JsonArguments, ReadProgress};
use super::json::{ByteStep, Json};
use super::name::is_name;

/// The keys of a call in its object.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectKeys {
    /// Paths of the function's name; the model's own form is first. `function.name` is the key
    /// `name` of the object at `function`.
    pub name: Vec<String>,
    /// Paths of its arguments.
    pub arguments: Vec<String>,
    /// Paths of the call's id.
    #[serde(default)]
    pub id: Vec<String>,
}

/// An event of the reader.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ObjectEvent {
    Start {
        name: String,
        id: Option<String>,
    },
    Arguments(String),
    /// The object has ended this number of bytes before the end of the text.
    End(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectPosition {
    /// Before `{` or `[`.
    Begin,
    /// In a list: before an object, or `]` if `first`.
    Item {
        first: bool,
    },
    /// In an object: before a key, or `}` if `first`.
    Key {
        first: bool,
    },
    InKey,
    Colon,
    /// Before a value.
    Value,
    /// In the value of the name, the id or an unknown key.
    Other,
    Arguments,
    /// After a value.
    Comma,
    /// After an object of a list.
    NextItem,
    Done,
}

/// Reader of calls in JSON objects.
#[derive(Debug)]
pub(crate) struct ObjectCalls {
    at: ObjectPosition,
    list: bool,
    json: Json,
    /// The raw text of the key or value being read.
    raw: String,
    /// Keys of the enclosing objects; the current key is last.
    path: Vec<String>,
    name: Option<String>,
    id: Option<String>,
    started: bool,
    arguments: Option<JsonArguments>,
    // Hermes models may write `arguments` first. A call cannot be announced without its name.
    /// Arguments that precede the name.
    early: String,
}

impl ObjectCalls {
    pub fn new() -> ObjectCalls {
        ObjectCalls {
            at: ObjectPosition::Begin,
            list: false,
            json: Json::new(),
            raw: String::new(),
            path: Vec::new(),
            name: None,
            id: None,
            started: false,
            arguments: None,
            early: String::new(),
        }
    }

    /// Whether a call has been announced and has not ended.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Whether the position is outside all calls.
    pub fn is_between(&self) -> bool {
        matches!(
            self.at,
            ObjectPosition::Begin
                | ObjectPosition::Item { .. }
                | ObjectPosition::NextItem
                | ObjectPosition::Done
        )
    }

    pub fn read(&mut self, text: &str, keys: &ObjectKeys, events: &mut Vec<ObjectEvent>) -> ReadProgress {
        let mut at = 0;
        while let Some(byte) = text.as_bytes().get(at).copied() {
            if self.at == ObjectPosition::Done {
                return ReadProgress::Done(at);
            }
            // Arguments are read in runs, not byte by byte, because they are most of a call's text.
            if self.at == ObjectPosition::Arguments {
                match self.read_arguments(text.get(at..).unwrap_or_default(), events) {
                    ReadProgress::More => return ReadProgress::More,
                    ReadProgress::Stuck(read) => return ReadProgress::Stuck(at + read),
                    ReadProgress::Done(read) => at += read,
                }
                continue;
            }
            match self.step(byte, text.get(at..).unwrap_or_default(), keys, events) {
                Ok(read) => at += read,
                Err(read) => return ReadProgress::Stuck(at + read),
            }
        }
        if self.at == ObjectPosition::Done { ReadProgress::Done(at) } else { ReadProgress::More }
    }

    /// Reads the part that begins with a byte. Returns its length; as an error, the number of bytes
    /// before an invalid one.
    fn step(
        &mut self,
        byte: u8,
        rest: &str,
        keys: &ObjectKeys,
        events: &mut Vec<ObjectEvent>,
    ) -> Result<usize, usize> {
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match (self.at, byte) {
            (ObjectPosition::InKey | ObjectPosition::Other, _) => return self.raw_value(rest, keys, events),
            // White space between tokens of the object.
            (_, _) if space => {}
            (ObjectPosition::Begin, b'[') => {
                self.list = true;
                self.at = ObjectPosition::Item { first: true };
            }
            (ObjectPosition::Begin | ObjectPosition::Item { .. }, b'{') => {
                self.at = ObjectPosition::Key { first: true }
            }
            (ObjectPosition::Item { first: true } | ObjectPosition::NextItem, b']') => {
                self.at = ObjectPosition::Done
            }
            (ObjectPosition::NextItem, b',') => self.at = ObjectPosition::Item { first: false },
            (ObjectPosition::Key { .. }, b'"') => {
                // Nothing is consumed: `raw_value` reads the key together with its opening quote.
                (self.at, self.json) = (ObjectPosition::InKey, Json::new());
                return Ok(0);
            }
            (ObjectPosition::Key { first: true } | ObjectPosition::Comma, b'}') => {
                // `}` is one byte, so the text after it is one byte shorter than `rest`.
                return self.end_object(rest.len() - 1, events).then_some(1).ok_or(0);
            }
            (ObjectPosition::Comma, b',') => self.at = ObjectPosition::Key { first: false },
            (ObjectPosition::Colon, b':') => self.at = ObjectPosition::Value,
            (ObjectPosition::Value, _) => {
                self.begin_value(byte, keys);
                // Only the `{` of an object that is entered is consumed. Other values are read from
                // their first byte by the reader that `begin_value` has chosen.
                return Ok(usize::from(byte == b'{' && matches!(self.at, ObjectPosition::Key { .. })));
            }
            _ => return Err(0),
        }
        Ok(1)
    }

    fn is(&self, paths: &[String]) -> bool {
        paths.iter().any(|path| path.split('.').eq(self.path.iter().map(String::as_str)))
    }

    fn begin_value(&mut self, byte: u8, keys: &ObjectKeys) {
        let all = || keys.name.iter().chain(&keys.arguments).chain(&keys.id);
        // Objects on the way to a known key are entered: `function` in OpenAI's nesting.
        let inside = byte == b'{'
            && all().any(|path| {
                path.split('.').count() > self.path.len()
                    && path.split('.').zip(&self.path).all(|(part, key)| part == key)
            });
        if inside {
            self.at = ObjectPosition::Key { first: true };
        // A second key with arguments (`arguments` and `parameters`) is read and dropped.
        } else if self.is(&keys.arguments) && self.arguments.is_none() {
            self.arguments = Some(JsonArguments::new());
            self.at = ObjectPosition::Arguments;
        } else {
            (self.at, self.json) = (ObjectPosition::Other, Json::new());
        }
    }

    /// Reads a key, a name, an id, or the value of an unknown key.
    fn raw_value(
        &mut self,
        rest: &str,
        keys: &ObjectKeys,
        events: &mut Vec<ObjectEvent>,
    ) -> Result<usize, usize> {
        for (i, byte) in rest.bytes().enumerate() {
            let step = self.json.step(byte);
            let read = match step {
                ByteStep::Take if self.json.is_done() => i + 1,
                ByteStep::Take => continue,
                ByteStep::Bad | ByteStep::Ended | ByteStep::Escape => i,
            };
            self.raw.push_str(rest.get(..read).unwrap_or_default());
            return match step {
                ByteStep::Bad => Err(i),
                ByteStep::Escape => {
                    super::json::escape_into(&mut self.raw, rest.get(i..=i).unwrap_or_default());
                    Ok(i + 1)
                }
                // A number or literal ends at the first byte that does not belong to it (`Ended`).
                // That byte is left for the next step.
                ByteStep::Take | ByteStep::Ended if self.end_raw(keys, events) => Ok(read),
                ByteStep::Take | ByteStep::Ended => Err(read),
            };
        }
        self.raw.push_str(rest);
        Ok(rest.len())
    }

    /// Handles a complete key or value. Returns false for an invalid name.
    fn end_raw(&mut self, keys: &ObjectKeys, events: &mut Vec<ObjectEvent>) -> bool {
        let raw = std::mem::take(&mut self.raw);
        let text = serde_json::from_str::<String>(&raw).ok();
        if self.at == ObjectPosition::InKey {
            self.path.extend(text);
            self.at = ObjectPosition::Colon;
            return true;
        }
        // After the announcement, another name or id would come too late.
        if self.is(&keys.name) && !self.started {
            self.name = text.filter(|name| is_name(name));
            if self.name.is_none() {
                return false;
            }
        } else if self.is(&keys.id) && !self.started {
            self.id = text;
        }
        self.path.pop();
        self.at = ObjectPosition::Comma;
        // The id may follow the name, and both are announced in one event. So the announcement
        // waits for the arguments or the end of the object.
        if self.arguments.is_some() {
            self.announce(events);
        }
        true
    }

    fn announce(&mut self, events: &mut Vec<ObjectEvent>) {
        if let (false, Some(name)) = (self.started, self.name.take()) {
            self.started = true;
            events.push(ObjectEvent::Start { name, id: self.id.take() });
            let early = std::mem::take(&mut self.early);
            if !early.is_empty() {
                events.push(ObjectEvent::Arguments(early));
            }
        }
    }

    fn read_arguments(&mut self, text: &str, events: &mut Vec<ObjectEvent>) -> ReadProgress {
        self.announce(events);
        let mut out = String::new();
        let arguments = self.arguments.get_or_insert_with(JsonArguments::new);
        let progress = arguments.read(text, &mut out);
        if self.started && !out.is_empty() {
            events.push(ObjectEvent::Arguments(out));
        } else {
            self.early.push_str(&out);
        }
        if matches!(progress, ReadProgress::Done(_)) {
            self.path.pop();
            self.at = ObjectPosition::Comma;
        }
        progress
    }

    /// Ends an object, with `left` bytes of the text after its `}`. Returns false if the call has
    /// no name.
    fn end_object(&mut self, left: usize, events: &mut Vec<ObjectEvent>) -> bool {
        // The end of a nested object, such as OpenAI's `function`. The call continues after it.
        if self.path.pop().is_some() {
            self.at = ObjectPosition::Comma;
            return true;
        }
        self.announce(events);
        if !self.started {
            return false;
        }
        // A call without arguments has an empty object: clients parse the arguments as JSON.
        if self.arguments.take().is_none() {
            events.push(ObjectEvent::Arguments("{}".to_owned()));
        }
        events.push(ObjectEvent::End(left));
        (self.started, self.name, self.id) = (false, None, None);
        self.at = if self.list { ObjectPosition::NextItem } else { ObjectPosition::Done };
        true
    }

    /// Ends the text inside a call and returns the rest of its arguments.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        match &mut self.arguments {
            Some(arguments) if self.at == ObjectPosition::Arguments => {
                arguments.finish(&mut out);
            }
            _ => {}
        }
        out
    }
}
