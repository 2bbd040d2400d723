//! Errors of sampling parameters.

/// A parameter out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ParamError {
    /// The field of [`SamplingParams`](super::SamplingParams) or of [`Request`](crate::Request).
    pub name: &'static str,
    pub(crate) problem: String,
}
