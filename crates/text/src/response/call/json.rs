//! A JSON text, byte by byte: whether it can still become valid, and where it ends.

/// Nesting that serde_json reads too.
const MAX_DEPTH: usize = 120;

/// What a byte is to the text so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteStep {
    /// It continues it.
    Take,
    /// It continues it, but is a control character in a string and must be escaped.
    Escape,
    /// The value ended before it.
    Ended,
    /// It cannot be here.
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
    /// Behind `[`: a value or `]`.
    First,
    /// Behind `{`: a key or `}`.
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    /// In a string; whether it is a key.
    String(bool),
    Backslash(bool),
    /// Digits of `\u` left, and what they have given.
    Hex(bool, u8, u16),
    /// A high surrogate came: `\` must follow.
    Pair(bool),
    /// … and then `u`.
    PairU(bool),
    /// … and then the digits of a low one.
    Low(bool, u8, u16),
    Number(NumberState),
    /// What is left of `true`, `false` or `null`.
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

    /// The value is whole. (A number is only once something follows it.)
    pub fn is_done(&self) -> bool {
        self.state == JsonState::Done
    }

    /// A value that is whole if nothing follows.
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

    fn become_(&mut self, state: JsonState) -> ByteStep {
        self.state = state;
        ByteStep::Take
    }

    /// Takes the next byte, unless it is bad or belongs to what follows.
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
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => ByteStep::Take,
            JsonState::First if byte == b']' => self.close(b'['),
            JsonState::Value | JsonState::First => self.value(byte),
            JsonState::KeyOrEnd if byte == b'}' => self.close(b'{'),
            JsonState::KeyOrEnd | JsonState::Key if byte == b'"' => self.become_(JsonState::String(true)),
            JsonState::Colon if byte == b':' => self.become_(JsonState::Value),
            JsonState::CommaOrEnd => match byte {
                b'}' => self.close(b'{'),
                b']' => self.close(b'['),
                b',' if self.stack.last() == Some(&b'{') => self.become_(JsonState::Key),
                b',' => self.become_(JsonState::Value),
                _ => ByteStep::Bad,
            },
            _ => ByteStep::Bad,
        }
    }

    fn value(&mut self, byte: u8) -> ByteStep {
        match byte {
            b'{' | b'[' => self.open(byte),
            b'"' => self.become_(JsonState::String(false)),
            b'-' => self.become_(JsonState::Number(NumberState::Minus)),
            b'0' => self.become_(JsonState::Number(NumberState::Zero)),
            b'1'..=b'9' => self.become_(JsonState::Number(NumberState::Integer)),
            b't' => self.become_(JsonState::Word(b"rue")),
            b'f' => self.become_(JsonState::Word(b"alse")),
            b'n' => self.become_(JsonState::Word(b"ull")),
            _ => ByteStep::Bad,
        }
    }

    fn in_string(&mut self, byte: u8) -> ByteStep {
        let digit = (byte as char).to_digit(16).and_then(|digit| u16::try_from(digit).ok());
        match self.state {
            JsonState::String(key) => match byte {
                b'"' if key => self.become_(JsonState::Colon),
                b'"' => {
                    self.up();
                    ByteStep::Take
                }
                b'\\' => self.become_(JsonState::Backslash(key)),
                0..0x20 => ByteStep::Escape,
                _ => ByteStep::Take,
            },
            JsonState::Backslash(key) => match byte {
                b'u' => self.become_(JsonState::Hex(key, 4, 0)),
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                    self.become_(JsonState::String(key))
                }
                _ => ByteStep::Bad,
            },
            JsonState::Hex(key, left, value) => match digit.map(|digit| (value << 4) | digit) {
                Some(value) if left > 1 => self.become_(JsonState::Hex(key, left - 1, value)),
                Some(0xd800..=0xdbff) => self.become_(JsonState::Pair(key)),
                Some(0xdc00..=0xdfff) | None => ByteStep::Bad,
                Some(_) => self.become_(JsonState::String(key)),
            },
            JsonState::Pair(key) if byte == b'\\' => self.become_(JsonState::PairU(key)),
            JsonState::PairU(key) if byte == b'u' => self.become_(JsonState::Low(key, 4, 0)),
            JsonState::Low(key, left, value) => match digit.map(|digit| (value << 4) | digit) {
                Some(value) if left > 1 => self.become_(JsonState::Low(key, left - 1, value)),
                Some(0xdc00..=0xdfff) => self.become_(JsonState::String(key)),
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
            _ if ends(number) => {
                self.up();
                return if self.is_done() { ByteStep::Ended } else { self.step(byte) };
            }
            _ => return ByteStep::Bad,
        };
        self.become_(JsonState::Number(next))
    }
}

/// Whether a number may end here.
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

/// Appends text as it stands in a JSON string.
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

    /// What the scanner says of a whole text: valid, or where it stopped.
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
    fn texts_are_judged_as_serde_json_judges_them() {
        let parts = [
            "{", "}", "[", "]", ",", ":", "\"", "a", "\\", "n", "u00e9", "ud83d", "\\ude00", "0", "1", "-",
            ".", "e", "+", " ", "true", "null", "é",
        ];
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
            // numbers beyond f64 are valid JSON, which serde_json does not take
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
