//! Why a plan is not written as C.

use latent_graph::GraphError;

/// Why a plan is not written as C.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// No plan can be made.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The model has something that the C code lacks.
    #[error("{file}: this model cannot be written as C: {}", missing.join("; "))]
    Unsupported {
        file: String,
        /// Everything that is missing, and what to do.
        missing: Vec<String>,
    },
    /// A plan that this crate does not understand.
    #[error("the plan cannot be written as C: {problem}; this is an error of Latent")]
    Internal { problem: String },
}

impl EmitError {
    pub(crate) fn internal(problem: impl Into<String>) -> EmitError {
        EmitError::Internal { problem: problem.into() }
    }
}
