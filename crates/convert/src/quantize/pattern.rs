//! Patterns of tensors' names.

use crate::quantize::error::QuantizeError;
use regex_automata::meta::Regex;

/// A regular expression that is looked for anywhere in a name.
#[derive(Clone, Debug)]
pub struct TensorPattern(Regex);

impl TensorPattern {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<TensorPattern, QuantizeError> {
        let problem = |error: &dyn std::fmt::Display| QuantizeError::Pattern {
            pattern: pattern.to_owned(),
            problem: error.to_string(),
        };
        Regex::new(pattern).map(TensorPattern).map_err(|error| match error.syntax_error() {
            Some(syntax) => problem(syntax),
            None => problem(&error),
        })
    }

    pub(crate) fn is_found_in(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}
