//! Patterns of tensors' names.

use crate::error::QuantizeError;
use regex_automata::meta::Regex;

/// A regular expression that is looked for anywhere in a name.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// A malformed one.
    pub fn new(pattern: &str) -> Result<Pattern, QuantizeError> {
        let problem = |error: &dyn std::fmt::Display| QuantizeError::Pattern {
            pattern: pattern.to_owned(),
            problem: error.to_string(),
        };
        Regex::new(pattern).map(Pattern).map_err(|error| match error.syntax_error() {
            Some(syntax) => problem(syntax),
            None => problem(&error),
        })
    }

    pub(crate) fn is_found_in(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}
