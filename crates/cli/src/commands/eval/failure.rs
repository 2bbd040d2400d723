//! Errors of evaluations, as errors of the command.

use crate::exit::{ReportedProblems, UsageError};
use latent_evaluate::EvalError;

/// Maps an error of an evaluation to the command's error, whose kind decides the exit code.
pub(crate) fn failed(error: EvalError) -> anyhow::Error {
    match error {
        EvalError::Engine(error) => error.into(),
        EvalError::TooShort { .. } | EvalError::NoPositions { .. } => UsageError(error.to_string()).into(),
        EvalError::NotFinite { .. } | EvalError::NoProbability { .. } => {
            ReportedProblems(error.to_string()).into()
        }
        other => other.into(),
    }
}
