//! Errors of response templates.

/// A response template that cannot be used. The model can still be served with a built-in format,
/// or with its output unparsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseFormatError {
    #[error("the response template is malformed: {place}: {problem}")]
    Malformed { place: String, problem: String },
    #[error("response template version {0} is not supported; expected 1")]
    Version(String),
    #[error("the response template's {place} {pattern:?} is not supported: {problem}")]
    Pattern { place: String, pattern: String, problem: String },
    #[error("unknown response format {name:?}; known formats: {known}")]
    Unknown { name: String, known: String },
}

impl ResponseFormatError {
    pub(super) fn malformed(place: impl Into<String>, problem: impl ToString) -> ResponseFormatError {
        ResponseFormatError::Malformed { place: place.into(), problem: problem.to_string() }
    }
}
