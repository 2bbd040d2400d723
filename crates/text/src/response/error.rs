//! Errors of response templates.

/// A response template that cannot be used. The model can be served without it: by one of ours, or unparsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseFormatError {
    /// It is not of the documented form.
    #[error("the response template is malformed: {place}: {problem}")]
    Malformed {
        /// Where, such as `fields.tool_calls.open`.
        place: String,
        /// What is wrong there.
        problem: String,
    },
    /// A version that is not known.
    #[error("response template version {0} is not supported; expected 1")]
    Version(String),
    /// A regular expression that cannot be matched incrementally.
    #[error("the response template's {place} {pattern:?} is not supported: {problem}")]
    Pattern { place: String, pattern: String, problem: String },
    /// No template of ours has this name.
    #[error("unknown response format {name:?}; known formats: {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        known: String,
    },
}

impl ResponseFormatError {
    pub(super) fn malformed(place: impl Into<String>, problem: impl ToString) -> ResponseFormatError {
        ResponseFormatError::Malformed { place: place.into(), problem: problem.to_string() }
    }
}
