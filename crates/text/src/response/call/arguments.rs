//! Arguments of a tool call that the model writes as JSON.

use super::json::{ByteStep, Json, escape_into};
use serde::de::IgnoredAny;
use serde_json::Map;

/// Progress of a reader in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadProgress {
    /// All of the text was read, and more may follow.
    More,
    /// The value is complete; it ended before this position.
    Done(usize),
    /// The byte at this position is invalid.
    Stuck(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentsPlace {
    /// Only white space so far.
    None,
    /// An object or a list, which is streamed.
    Direct,
    /// A string, a number or a word, which is held until it is complete.
    Held,
}

/// Streams JSON while it is valid. Deviations of models are corrected: `null` and empty text become
/// `{}`, an object in a string becomes the object, and control characters in strings are escaped.
#[derive(Debug)]
pub(crate) struct JsonArguments {
    json: Json,
    form: ArgumentsPlace,
    held: String,
    done: bool,
}

impl JsonArguments {
    pub fn new() -> JsonArguments {
        JsonArguments { json: Json::new(), form: ArgumentsPlace::None, held: String::new(), done: false }
    }

    pub fn is_empty(&self) -> bool {
        self.form == ArgumentsPlace::None
    }

    /// Reads text and appends the certain part of the arguments to `out`.
    pub fn read(&mut self, text: &str, out: &mut String) -> ReadProgress {
        if self.done {
            return ReadProgress::Done(0);
        }
        let mut from = 0;
        for (i, byte) in text.bytes().enumerate() {
            if self.form == ArgumentsPlace::None {
                if byte.is_ascii_whitespace() {
                    from = i + 1;
                    continue;
                }
                self.form =
                    if matches!(byte, b'{' | b'[') { ArgumentsPlace::Direct } else { ArgumentsPlace::Held };
                // A byte that begins no JSON leaves the arguments empty, so that the caller can
                // distinguish missing from malformed arguments.
                if Json::new().step(byte) == ByteStep::Bad {
                    self.form = ArgumentsPlace::None;
                    return ReadProgress::Stuck(i);
                }
            }
            let step = self.json.step(byte);
            if step != ByteStep::Take {
                self.pass(text.get(from..i), out);
                from = i;
            }
            match step {
                ByteStep::Take => {}
                ByteStep::Escape => {
                    let sink = if self.form == ArgumentsPlace::Direct { &mut *out } else { &mut self.held };
                    escape_into(sink, text.get(i..=i).unwrap_or_default());
                    from = i + 1;
                }
                ByteStep::Bad => return ReadProgress::Stuck(i),
                ByteStep::Ended => {
                    self.settle(out);
                    return ReadProgress::Done(i);
                }
            }
            // Objects, strings and words end with their last byte. Only a number needs the byte
            // after it.
            if self.json.is_done() {
                self.pass(text.get(from..=i), out);
                self.settle(out);
                return ReadProgress::Done(i + 1);
            }
        }
        self.pass(text.get(from..), out);
        ReadProgress::More
    }

    fn pass(&mut self, text: Option<&str>, out: &mut String) {
        let sink = if self.form == ArgumentsPlace::Direct { out } else { &mut self.held };
        sink.push_str(text.unwrap_or_default());
    }

    /// Appends a complete value.
    fn settle(&mut self, out: &mut String) {
        self.done = true;
        let held = std::mem::take(&mut self.held);
        // OpenAI's API holds arguments in a string. Models imitate that ("v3.1: arguments as a
        // string").
        let written = serde_json::from_str::<String>(&held).ok();
        let object =
            written.filter(|text| serde_json::from_str::<Map<String, serde_json::Value>>(text).is_ok());
        match object {
            _ if held == "null" => out.push_str("{}"),
            Some(object) => out.push_str(&object),
            None => out.push_str(&held),
        }
    }

    /// Ends malformed arguments: appends held text unchanged.
    pub fn finish_broken(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.held));
    }

    /// Ends the arguments. Returns whether they are complete; otherwise appends held text
    /// unchanged.
    pub fn finish(&mut self, out: &mut String) -> bool {
        if self.is_empty() {
            self.done = true;
            out.push_str("{}");
        } else if !self.done && self.json.may_end() {
            self.settle(out);
        }
        out.push_str(&std::mem::take(&mut self.held));
        self.done
    }
}

/// Whether a text is one JSON value.
pub(crate) fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}
