//! `latent eval`: quality of a model.

mod asking;
mod choice;
mod corpus;
mod kl;
mod perplexity;
mod questions;
mod report;
mod results;
mod retrieval;
mod routing;
mod weights;

use crate::args::{EvalArgs, EvalCommand};
use crate::exit::{ReportedProblems, UsageError};
use anyhow::Result;
use latent_evaluate::EvalError;

pub(crate) use corpus::bos;

pub(super) fn run(args: &EvalArgs) -> Result<()> {
    match &args.command {
        EvalCommand::Perplexity(args) => perplexity::run(args),
        EvalCommand::Kl(args) => kl::run(args),
        EvalCommand::Choice(args) => choice::run(args),
        EvalCommand::Questions(args) => questions::run(args),
        EvalCommand::Retrieval(args) => retrieval::run(args),
        EvalCommand::Routing(args) => routing::run(args),
        EvalCommand::Weights(args) => weights::run(args),
        EvalCommand::Report(args) => report::run(args),
    }
}

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
