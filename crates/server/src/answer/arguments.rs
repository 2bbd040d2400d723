//! Streaming of a tool call's arguments, so that a truncated call still has valid JSON.

/// A filter over the JSON text of a call's arguments. It releases only complete members of the
/// top-level object, so that the released text can be closed to a valid object at any time.
///
/// Anthropic's clients parse the joined `input_json_delta` texts. They fail on a call that was cut
/// off by `max_tokens`.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartialArguments {
    text: String,
    /// Released bytes.
    sent: usize,
    scanned: usize,
    /// Nesting depth of objects and lists.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// End of the last complete member, or of the object.
    complete: usize,
    state: ObjectState,
}

/// State of the scanner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ObjectState {
    #[default]
    Before,
    Open,
    Closed,
    /// Invalid JSON: nothing after this point is released.
    Broken,
}

impl PartialArguments {
    /// Appends text and returns the text that is released by it.
    pub(crate) fn push(&mut self, more: &str) -> &str {
        self.text.push_str(more);
        for at in self.scanned..self.text.len() {
            if matches!(self.state, ObjectState::Closed | ObjectState::Broken) {
                break;
            }
            self.scan(at, self.text.as_bytes()[at]);
        }
        self.scanned = self.text.len();
        let from = self.sent;
        self.sent = self.complete;
        &self.text[from..self.sent]
    }

    fn scan(&mut self, at: usize, byte: u8) {
        // Bytes suffice: all structural characters of JSON are ASCII, which never occurs inside a
        // multi-byte character of UTF-8.
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match (self.state, byte) {
            (ObjectState::Before, b'{') => {
                (self.state, self.depth, self.complete) = (ObjectState::Open, 1, at + 1);
            }
            (ObjectState::Before, byte) if byte.is_ascii_whitespace() => {}
            (ObjectState::Before, _) => self.state = ObjectState::Broken,
            (_, b'"') => self.in_string = true,
            (_, b'{' | b'[') => self.depth += 1,
            // The comma is released with the next member: JSON does not allow one before a closing
            // brace.
            (_, b',') if self.depth == 1 => self.member(at, at),
            (_, b'}') if self.depth == 1 => {
                self.member(at, at + 1);
                if self.state == ObjectState::Open {
                    self.state = ObjectState::Closed;
                }
            }
            (_, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Handles the end of a member at `at`. If it is valid, the text before `complete` is released.
    fn member(&mut self, at: usize, complete: usize) {
        let member = &self.text[self.complete..at];
        // Only the closing brace (`complete > at`) may follow an empty member: `{}`.
        if is_member(member) || (complete > at && member.trim().is_empty()) {
            self.complete = complete;
        } else {
            self.state = ObjectState::Broken;
        }
    }

    /// Returns the text that closes the released text to an object. The last member of a truncated
    /// call is dropped, unless its value is certainly complete.
    pub(crate) fn finish(self) -> String {
        let held = self.text[self.complete..].trim_end();
        match self.state {
            ObjectState::Closed => String::new(),
            // A string, object or list that is closed is complete. A number or a word may not be:
            // `12` can be the beginning of `125`.
            ObjectState::Open if held.ends_with(['"', '}', ']']) && is_member(held) => format!("{held}}}"),
            _ if self.complete == 0 => "{}".to_owned(),
            _ => "}".to_owned(),
        }
    }
}

/// Whether a text is a valid member of an object, optionally after a comma.
fn is_member(text: &str) -> bool {
    let text = text.trim_start();
    let member = text.strip_prefix(',').unwrap_or(text);
    !member.trim().is_empty()
        && serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(&format!("{{{member}}}")).is_ok()
}

/// The arguments of a call as a JSON object. A truncated text yields its complete members.
pub(crate) fn complete_members(arguments: &str) -> serde_json::Value {
    let mut partial = PartialArguments::default();
    let mut text = partial.push(arguments).to_owned();
    text.push_str(&partial.finish());
    serde_json::from_str(&text)
        .ok()
        .filter(serde_json::Value::is_object)
        .unwrap_or_else(|| serde_json::json!({}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn members_that_are_incomplete_are_dropped() {
        for (text, expected) in [
            ("", json!({})),
            ("  ", json!({})),
            ("{", json!({})),
            (r#"{"a"#, json!({})),
            (r#"{"a""#, json!({})),
            (r#"{"a":"#, json!({})),
            (r#"{"a": "x"#, json!({})),
            (r#"{"a": "x\""#, json!({})),
            (r#"{"a": "x""#, json!({"a": "x"})),
            // A number may have further digits until the next character.
            (r#"{"a": 12"#, json!({})),
            (r#"{"a": 12,"#, json!({"a": 12})),
            (r#"{"a": 12, "b": [1, {"c": 2}"#, json!({"a": 12})),
            (r#"{"a": 12, "b": [1, {"c": "},"}]"#, json!({"a": 12, "b": [1, {"c": "},"}]})),
            (r#"{"a": {"b": 1, "c""#, json!({})),
            (r#"{"a": tru"#, json!({})),
            (r#"{"a": 1}"#, json!({"a": 1})),
            ("{}", json!({})),
            // Malformed arguments keep the members before the fault.
            ("no JSON", json!({})),
            ("[1, 2", json!({})),
            ("[1, 2]", json!({})),
            ("{junk, \"a\": 1}", json!({})),
            ("{\"a\": 1, junk, \"b\": 2}", json!({"a": 1})),
        ] {
            assert_eq!(complete_members(text), expected, "{text}");
        }
    }

    #[test]
    fn pieces_of_any_size_release_the_same_object() {
        let text = r#"{"path": "a,\"b}", "n": [1, {"x": "é,}"}], "last": "cut"}"#;
        // Truncated at every character, and pushed in pieces of one to three characters.
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let expected = complete_members(&text[..end]);
            for step in 1..4 {
                let mut partial = PartialArguments::default();
                let mut passed = String::new();
                let mut buffer = String::new();
                for (i, c) in text[..end].chars().enumerate() {
                    buffer.push(c);
                    if i % step == 0 {
                        passed.push_str(partial.push(&std::mem::take(&mut buffer)));
                    }
                }
                passed.push_str(partial.push(&buffer));
                passed.push_str(&partial.finish());
                assert_eq!(serde_json::from_str::<Value>(&passed).unwrap(), expected, "{}", &text[..end]);
            }
        }
        assert_eq!(complete_members(text)["last"], "cut");
    }
}
