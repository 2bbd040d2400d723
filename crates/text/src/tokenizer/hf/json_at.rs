//! Values of tokenizer.json with their paths, for errors that name both.

use crate::error::TextError;
use serde_json::Value;

/// Maximum characters of a value in an error.
const SHOWN: usize = 80;

/// A value and its path, such as `normalizer.normalizers[2].pattern`.
pub(super) struct LocatedValue<'a> {
    path: String,
    value: &'a Value,
}

impl<'a> LocatedValue<'a> {
    pub(super) fn new(path: &str, value: &'a Value) -> LocatedValue<'a> {
        LocatedValue { path: path.to_owned(), value }
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    /// The value of a key, unless it is missing or null.
    pub(super) fn get(&self, key: &str) -> Option<LocatedValue<'a>> {
        // Python writes options without a value as null.
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(LocatedValue { path: format!("{}.{key}", self.path), value })
    }

    /// The value of a required key.
    pub(super) fn at(&self, key: &str) -> Result<LocatedValue<'a>, TextError> {
        self.get(key).ok_or_else(|| self.refused(&format!("an object with {key}")))
    }

    /// The type of a component.
    pub(super) fn component(&self, accepted: &str) -> Result<&'a str, TextError> {
        let ty = self.value.get("type").and_then(Value::as_str);
        ty.ok_or_else(|| self.refused(&format!("an object whose type is one of {accepted}")))
    }

    /// The components of a list.
    pub(super) fn list(&self, key: &str) -> Result<Vec<LocatedValue<'a>>, TextError> {
        let list = self.at(key)?;
        let Some(values) = list.value.as_array() else { return Err(list.refused("a list")) };
        let place = |(i, value)| LocatedValue { path: format!("{}[{i}]", list.path), value };
        Ok(values.iter().enumerate().map(place).collect())
    }

    pub(super) fn text(&self) -> Result<&'a str, TextError> {
        self.value.as_str().ok_or_else(|| self.refused("a text"))
    }

    pub(super) fn number(&self) -> Result<u64, TextError> {
        self.value.as_u64().ok_or_else(|| self.refused("an integer"))
    }

    /// A boolean. Required unless it has a default.
    pub(super) fn flag(&self, key: &str, default: Option<bool>) -> Result<bool, TextError> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.refused(&format!("an object with {key}"))),
            (Some(place), _) => place.value.as_bool().ok_or_else(|| place.refused("true or false")),
        }
    }

    /// The error for an unknown component.
    pub(super) fn unknown(&self, accepted: &str) -> TextError {
        let found = self.value.get("type").unwrap_or(self.value);
        self.error(format!("is {}, which is not supported", shown(found)), accepted)
    }

    /// The error for a value that is not accepted.
    pub(super) fn refused(&self, accepted: &str) -> TextError {
        self.error(format!("is {}", shown(self.value)), accepted)
    }

    fn error(&self, found: String, accepted: &str) -> TextError {
        TextError::Component { place: self.path.clone(), found, accepted: accepted.to_owned() }
    }

    /// The error for a value with another problem.
    pub(super) fn problem(&self, problem: &str) -> TextError {
        TextError::Malformed(format!("tokenizer.json: {} is {}: {problem}", self.path, shown(self.value)))
    }
}

/// A value for an error, truncated to [`SHOWN`] characters.
fn shown(value: &Value) -> String {
    // A pattern can have thousands of characters.
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
