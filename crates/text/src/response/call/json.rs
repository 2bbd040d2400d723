//! Incremental JSON scanner: tells after each byte whether the text can become valid JSON, and
//! where the value ends.
//!
//! serde_json parses complete texts only. Arguments are streamed before they are complete.

/// Maximum nesting. serde_json accepts 127 levels, so it can parse all that this scanner accepts.
const MAX_DEPTH: usize = 120;

/// Effect of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteStep {
    /// The byte continues the value.
    Take,
    /// The byte is a control character in a string. It continues the value if it is escaped.
    Escape,
    /// The value ended before the byte.
    Ended,
    /// The byte is invalid.
    Bad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberState {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonState {
    Value,
    /// After `[`: a value or `]`.
    First,
    /// After `{`: a key or `}`.
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    /// In a string; whether it is a key.
    String(bool),
    Backslash(bool),
    /// In `\u`: the number of digits left, and their value so far.
    Hex(bool, u8, u16),
    // serde_json rejects unpaired surrogates, so they are invalid here too.
    /// After a high surrogate: `\` must follow.
    Pair(bool),
    /// After a high surrogate and `\`: `u` must follow.
    PairU(bool),
    /// In the digits of a low surrogate.
    Low(bool, u8, u16),
    Number(NumberState),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    Done,
}

/// A scanner of one JSON value.
#[derive(Debug)]
pub(crate) struct Json {
    stack: Vec<u8>,
    state: JsonState,
}

impl Json {
    pub fn new() -> Json {
        Json { stack: Vec::new(), state: JsonState::Value }
    }

    /// Whether the value is complete. A number is complete only when another byte follows.
    pub fn is_done(&self) -> bool {
        self.state == JsonState::Done
    }

    /// Whether the value is complete if the text ends here.
    pub fn may_end(&self) -> bool {
        match self.state {
            JsonState::Done => true,
            JsonState::Number(number) => self.stack.is_empty() && ends(number),
            _ => false,
        }
    }

    fn up(&mut self) {
        self.state = if self.stack.is_empty() { JsonState::Done } else { JsonState::CommaOrEnd };
    }

    fn open(&mut self, bracket: u8) -> ByteStep {
        // Deeper text is malformed, although JSON allows it: serde_json could not parse it later.
        if self.stack.len() == MAX_DEPTH {
            return ByteStep::Bad;
        }
        self.stack.push(bracket);
        self.state = if bracket == b'{' { JsonState::KeyOrEnd } else { JsonState::First };
        ByteStep::Take
    }

    fn close(&mut self, bracket: u8) -> ByteStep {
        if self.stack.last() != Some(&bracket) {
            return ByteStep::Bad;
        }
        self.stack.pop();
        self.up();
        ByteStep::Take
    }

    fn enter(&mut self, state: JsonState) -> ByteStep {
        self.state = state;
        ByteStep::Take
    }

    /// Processes the next byte. An invalid byte, or one after the value, does not change the state.
    pub fn step(&mut self, byte: u8) -> ByteStep {
        match self.state {
            JsonState::String(_)
            | JsonState::Backslash(_)
            | JsonState::Hex(..)
            | JsonState::Pair(_)
            | JsonState::PairU(_) => self.in_string(byte),
            JsonState::Low(..) => self.in_string(byte),
            JsonState::Number(number) => self.number(number, byte),
            JsonState::Word(rest) => match rest {
                [next, rest @ ..] if *next == byte => {
                    if rest.is_empty() {
                        self.up()
                    } else {
                        self.state = JsonState::Word(rest)
                    }
                    ByteStep::Take
                }
                _ => ByteStep::Bad,
            },
            JsonState::Done => ByteStep::Ended,
            // White space is allowed in all states that follow. States within a token are handled
            // above.
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => ByteStep::Take,
            JsonState::First if byte == b']' => self.close(b'['),
            JsonState::Value | JsonState::First => self.value(byte),
            JsonState::KeyOrEnd if byte == b'}' => self.close(b'{'),
            JsonState::KeyOrEnd | JsonState::Key if byte == b'"' => self.enter(JsonState::String(true)),
            JsonState::Colon if byte == b':' => self.enter(JsonState::Value),
            JsonState::CommaOrEnd => match byte {
                b'}' => self.close(b'{'),
                b']' => self.close(b'['),
                b',' if self.stack.last() == Some(&b'{') => self.enter(JsonState::Key),
                b',' => self.enter(JsonState::Value),
                _ => ByteStep::Bad,
            },
            _ => ByteStep::Bad,
        }
    }

    fn value(&mut self, byte: u8) -> ByteStep {
        match byte {
            b'{' | b'[' => self.open(byte),
            b'"' => self.enter(JsonState::String(false)),
            b'-' => self.enter(JsonState::Number(NumberState::Minus)),
            // No digit may follow a leading zero.
            b'0' => self.enter(JsonState::Number(NumberState::Zero)),
            b'1'..=b'9' => self.enter(JsonState::Number(NumberState::Integer)),
            b't' => self.enter(JsonState::Word(b"rue")),
            b'f' => self.enter(JsonState::Word(b"alse")),
            b'n' => self.enter(JsonState::Word(b"ull")),
            _ => ByteStep::Bad,
        }
    }

    fn in_string(&mut self, byte: u8) -> ByteStep {
        let digit = (byte as char).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
        match self.state {
            JsonState::String(key) => match byte {
                b'"' if key => self.enter(JsonState::Colon),
                b'"' => {
                    self.up();
                    ByteStep::Take
                }
                b'\\' => self.enter(JsonState::Backslash(key)),
                // Models write line ends into strings. JSON requires an escape.
                0..0x20 => ByteStep::Escape,
                _ => ByteStep::Take,
            },
            JsonState::Backslash(key) => match byte {
                b'u' => self.enter(JsonState::Hex(key, 4, 0)),
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.enter(JsonState::String(key)),
                _ => ByteStep::Bad,
            },
            JsonState::Hex(key, left, value) => match digit.map(|digit| (value << 4) | digit) {
                Some(value) if left > 1 => self.enter(JsonState::Hex(key, left - 1, value)),
                Some(0xd800..=0xdbff) => self.enter(JsonState::Pair(key)),
                // A low surrogate without a high one, or not a digit.
                Some(0xdc00..=0xdfff) | None => ByteStep::Bad,
                Some(_) => self.enter(JsonState::String(key)),
            },
            JsonState::Pair(key) if byte == b'\\' => self.enter(JsonState::PairU(key)),
            JsonState::PairU(key) if byte == b'u' => self.enter(JsonState::Low(key, 4, 0)),
            JsonState::Low(key, left, value) => match digit.map(|digit| (value << 4) | digit) {
                Some(value) if left > 1 => self.enter(JsonState::Low(key, left - 1, value)),
                Some(0xdc00..=0xdfff) => self.enter(JsonState::String(key)),
                _ => ByteStep::Bad,
            },
            _ => ByteStep::Bad,
        }
    }

    fn number(&mut self, number: NumberState, byte: u8) -> ByteStep {
        use NumberState::{Exponent, Fraction, Integer, Minus, Point, Power, Sign, Zero};
        let next = match (number, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Integer, b'0'..=b'9') => Integer,
            (Zero | Integer, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Integer | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => Sign,
            (Exponent | Sign | Power, b'0'..=b'9') => Power,
            // Numbers have no end mark: the byte after a number is processed in the state after it.
            _ if ends(number) => {
                self.up();
                return if self.is_done() { ByteStep::Ended } else { self.step(byte) };
            }
            _ => return ByteStep::Bad,
        };
        self.enter(JsonState::Number(next))
    }
}

/// Whether a number may end in a state.
fn ends(number: NumberState) -> bool {
    matches!(number, NumberState::Zero | NumberState::Integer | NumberState::Fraction | NumberState::Power)
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    escape_into(&mut out, text);
    out.push('"');
    out
}

/// Appends text with the escapes of a JSON string.
pub(crate) fn escape_into(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\u{1f}' => {
                let code = u32::from(c);
                out.push_str("\\u00");
                out.extend([code >> 4, code & 15].map(|digit| char::from_digit(digit, 16).unwrap_or('0')));
            }
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans a whole text: valid, or the position of the invalid byte.
    fn scan(text: &str) -> Result<(), usize> {
        let mut json = Json::new();
        for (i, byte) in text.bytes().enumerate() {
            match json.step(byte) {
                ByteStep::Take => {}
                ByteStep::Ended if byte.is_ascii_whitespace() => {}
                _ => return Err(i),
            }
        }
        if json.may_end() { Ok(()) } else { Err(text.len()) }
    }

    #[test]
    fn accepts_the_same_texts_as_serde_json() {
        let parts = [
            "{", "}", "[", "]", ",", ":", "\"", "a", "\\", "n", "u00e9", "ud83d", "\\ude00", "0", "1", "-",
            ".", "e", "+", " ", "true", "null", "é",
        ];
        // A fixed seed, so that a failure can be reproduced.
        let mut seed = 1u64;
        let mut valid = 0;
        for _ in 0..200_000 {
            let mut text = String::new();
            for _ in 0..seed >> 60 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(parts[(seed >> 33) as usize % parts.len()]);
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let expected = serde_json::from_str::<serde_json::Value>(&text);
            valid += usize::from(expected.is_ok());
            // serde_json rejects numbers beyond the range of f64, which are valid JSON.
            let too_large = expected.as_ref().is_err_and(|e| e.to_string().contains("out of range"));
            assert!(
                scan(&text).is_ok() == expected.is_ok() || too_large,
                "{text:?}: {:?} {expected:?}",
                scan(&text)
            );
        }
        assert!(valid > 1000, "{valid} valid texts");
    }

    #[test]
    fn deep_nesting_is_refused() {
        assert_eq!(scan(&"[".repeat(200)), Err(120));
        assert_eq!(scan(&format!("{}{}", "[".repeat(119), "]".repeat(119))), Ok(()));
    }
}
