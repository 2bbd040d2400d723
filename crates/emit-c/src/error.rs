//! Errors of writing a plan as C.

use latent_graph::GraphError;

/// An error of writing a plan as C.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("{file}: this model cannot be written as C: {}", missing.join("; "))]
    Unsupported {
        file: String,
        /// Everything that has no C code, and what to do about it.
        missing: Vec<String>,
    },
    #[error("the plan cannot be written as C: {problem} (please report this)")]
    Internal { problem: String },
}

impl EmitError {
    pub(crate) fn internal(problem: impl Into<String>) -> EmitError {
        EmitError::Internal { problem: problem.into() }
    }
}
