//! Files with one JSON object per line (JSON Lines).

use crate::error::EvalError;
use latent_formats::input_file;
use serde_json::{Map, Value};
use std::path::Path;

/// Maximum bytes of a file.
// The whole file is in memory while its lines are parsed.
const MAX_BYTES: u64 = 1 << 30;

/// A line and its place, for errors.
pub(crate) struct JsonlLine<'a> {
    path: &'a Path,
    /// Line number, from 1.
    pub(crate) number: usize,
    object: Map<String, Value>,
}

impl JsonlLine<'_> {
    /// An error about this line.
    pub(crate) fn wrong(&self, problem: String) -> EvalError {
        wrong(self.path, self.number, problem)
    }

    /// The value of the first of these keys that the object has.
    pub(crate) fn find(&self, keys: &[&str]) -> Option<&Value> {
        // Data sets differ in names: the text is `ctx` in HellaSwag and `question` in others.
        keys.iter().find_map(|key| self.object.get(*key))
    }

    /// The value of the first of these keys, which is required.
    pub(crate) fn value(&self, keys: &[&str]) -> Result<&Value, EvalError> {
        self.find(keys).ok_or_else(|| {
            let has: Vec<&str> = self.object.keys().map(String::as_str).collect();
            self.wrong(format!("expected one of the keys {}, found {}", keys.join(", "), listed(&has)))
        })
    }

    /// The required value as a nonempty text.
    pub(crate) fn text(&self, keys: &[&str]) -> Result<&str, EvalError> {
        let value = self.value(keys)?;
        let text = value.as_str().filter(|text| !text.is_empty());
        text.ok_or_else(|| self.wrong(format!("{} must be a non-empty text", keys.join(" or "))))
    }
}

fn listed(keys: &[&str]) -> String {
    if keys.is_empty() { "none".into() } else { keys.join(", ") }
}

fn wrong(path: &Path, line: usize, problem: String) -> EvalError {
    EvalError::Line { path: path.to_owned(), line, problem }
}

/// Parses every line that is not blank, at most `most` of them.
///
/// # Errors
/// Anything but a plain text file; a line that is not a JSON object; an error of `parse`; a file
/// without lines.
pub(crate) fn read<T>(
    path: &Path,
    most: Option<usize>,
    parse: impl Fn(&JsonlLine<'_>) -> Result<T, EvalError>,
) -> Result<Vec<T>, EvalError> {
    let text = input_file::read_text(path, MAX_BYTES)?;
    let mut all = Vec::new();
    // Counted before blank lines are dropped, so that errors have an editor's line numbers.
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (at, line) in lines.take(most.unwrap_or(usize::MAX)) {
        let number = at + 1;
        let object = match serde_json::from_str(line) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(wrong(path, number, "it is not a JSON object".into())),
            Err(error) => return Err(wrong(path, number, format!("invalid JSON: {error}"))),
        };
        all.push(parse(&JsonlLine { path, number, object })?);
    }
    if all.is_empty() {
        return Err(EvalError::Empty { path: path.to_owned() });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let read = read(file.path(), None, |line| Ok(line.text(&["name", "title"])?.to_owned()));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number() {
        assert_eq!(names("{\"name\": \"a\"}\n\n{\"title\": \"b\"}\n").unwrap(), ["a", "b"]);
        for (text, words) in [
            ("{\"name\": \"a\"}\n{\"name\": ", ["line 2", "invalid JSON"]),
            ("\n[1]", ["line 2", "not a JSON object"]),
            ("{\"x\": 1}", ["line 1", "name, title, found x"]),
            ("{\"name\": 1}", ["line 1", "must be a non-empty text"]),
            ("{\"name\": \"\"}", ["line 1", "must be a non-empty text"]),
            ("\n \n", ["empty", ""]),
        ] {
            let error = names(text).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{text:?}: {error}");
        }
    }
}
