//! Errors of evaluations as those of the command.

use crate::exit::{ReportedProblems, UsageError};
use latent_evaluate::EvalError;

/// With the exit code that fits.
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
