//! A call's arguments where the model writes them as JSON.

use super::json::{ByteStep, Json, escape_into};
use serde::de::IgnoredAny;
use serde_json::Map;

/// How far a reader came in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadProgress {
    /// All of it is read, and more may follow.
    More,
    /// What was read for is whole; it ended before this byte.
    Done(usize),
    /// The byte at this position cannot be here.
    Stuck(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArgumentsPlace {
    /// Nothing but white space yet.
    None,
    /// An object or a list, which goes out as it comes in.
    Direct,
    /// A string, a number or a word: held until it is whole.
    Held,
}

/// Passes JSON on as long as it is valid. What models write in place of an object is put right: `null` and nothing become `{}`, an object
/// written as a string becomes the object, and control characters in strings are escaped.
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

    /// Reads text, and appends what is certain to `out`.
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

    /// The value is whole.
    fn settle(&mut self, out: &mut String) {
        self.done = true;
        let held = std::mem::take(&mut self.held);
        let written = serde_json::from_str::<String>(&held).ok();
        let object =
            written.filter(|text| serde_json::from_str::<Map<String, serde_json::Value>>(text).is_ok());
        match object {
            _ if held == "null" => out.push_str("{}"),
            Some(object) => out.push_str(&object),
            None => out.push_str(&held),
        }
    }

    /// The text cannot go on: what is held goes out as it is.
    pub fn finish_broken(&mut self, out: &mut String) {
        out.push_str(&std::mem::take(&mut self.held));
    }

    /// The text is over. True if the arguments are whole; else what is held goes out as it is.
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
