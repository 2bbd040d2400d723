//! A strict parser for small JSON files. Duplicate keys are errors. Bytes, values and depth are
//! bounded, so that no file can exhaust memory.

use crate::error::FormatError;
use crate::limits;
use crate::sniff::known_non_model;
use latent_files::{InputError, input_file};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;

/// Parses JSON text with at most [`limits::MAX_JSON_VALUES`] values and 127 levels, without
/// duplicate keys in an object.
pub fn parse(text: &str) -> Result<Value, String> {
    // Counted before parsing: 16 MB of `[0,0,…` would become hundreds of megabytes of values.
    let values = count_values(text.as_bytes());
    if values > limits::MAX_JSON_VALUES {
        return Err(format!(
            "it holds about {values} values, more than the limit of {}",
            limits::MAX_JSON_VALUES
        ));
    }
    // serde_json stops at a depth of 128, so the visitors below cannot recurse further.
    serde_json::from_str::<StrictValue>(text)
        .map(|strict| strict.0)
        .map_err(|error| format!("invalid JSON: {error}"))
}

/// An upper bound on the number of values in JSON text. Each value but the first follows one of
/// these characters.
fn count_values(text: &[u8]) -> usize {
    // An upper bound: every value but the outermost follows one of these bytes. Keys are counted
    // too.
    1 + outside_strings(text).filter(|byte| b",[{:".contains(byte)).count()
}

/// The bytes of JSON text outside of strings, for bounds on a text before it is parsed.
pub fn outside_strings(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut quoted = false;
    let mut bytes = text.iter();
    std::iter::from_fn(move || {
        loop {
            match bytes.next()? {
                b'"' => quoted = !quoted,
                // The next byte is escaped: it may be a quote.
                b'\\' if quoted => {
                    bytes.next();
                }
                byte if !quoted => return Some(*byte),
                _ => {}
            }
        }
    })
}

/// Reads the text of a file; `None` if it does not exist.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<Option<String>, FormatError> {
    let wrong = |problem: String| Err(FormatError::Json { path: path.to_owned(), problem });
    match input_file::read_text(path, limit) {
        Ok(text) => Ok(Some(text)),
        Err(InputError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(InputError::Io { path, error }) => Err(FormatError::Io { path, error }),
        Err(InputError::NotAFile { .. }) => wrong("it is not a regular file".into()),
        Err(InputError::TooLarge { bytes, limit, .. }) => {
            wrong(format!("its {bytes} bytes exceed the limit of {limit}"))
        }
        Err(InputError::NotText { utf16: true, .. }) => wrong(UTF_16.into()),
        Err(InputError::NotText { error, .. }) => wrong(format!("it is not UTF-8 text: {error}")),
    }
}

const BOM: &str =
    "it begins with a byte order mark (BOM), which JSON does not allow; save it as UTF-8 without BOM";

const UTF_16: &str = "it is UTF-16 text, but JSON must be UTF-8; save it as UTF-8 without BOM";

/// Parses a file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<Value>, FormatError> {
    let Some(text) = read_text(path, limits::MAX_JSON_BYTES)? else { return Ok(None) };
    parse(&text).map(Some).map_err(|problem| failed(path, &text, problem))
}

/// The error for a file that is not JSON, with the file's type if it is recognized.
pub(crate) fn failed(path: &Path, text: &str, problem: String) -> FormatError {
    let problem = match known_non_model(text.as_bytes()) {
        Some(known) => known.to_owned(),
        None if text.starts_with('\u{feff}') => BOM.to_owned(),
        None => problem,
    };
    FormatError::Json { path: path.to_owned(), problem }
}

/// A value without duplicate keys in objects. serde_json's own `Value` keeps the last of
/// duplicates, other programs may keep the first.
struct StrictValue(Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StrictValue, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = StrictValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<StrictValue, E> {
        Ok(StrictValue(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<StrictValue, E> {
        Ok(StrictValue(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<StrictValue, E> {
        Ok(StrictValue(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<StrictValue, E> {
        Ok(StrictValue(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<StrictValue, E> {
        Ok(StrictValue(value.into()))
    }

    fn visit_string<E>(self, value: String) -> Result<StrictValue, E> {
        Ok(StrictValue(value.into()))
    }

    fn visit_unit<E>(self) -> Result<StrictValue, E> {
        Ok(StrictValue(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<StrictValue, A::Error> {
        let mut values = Vec::new();
        while let Some(StrictValue(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(StrictValue(Value::Array(values)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StrictValue, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            // Before the value is parsed: a duplicate of a large value costs nothing.
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} occurs twice")));
            }
            let StrictValue(value) = map.next_value()?;
            object.insert(key, value);
        }
        Ok(StrictValue(Value::Object(object)))
    }
}
