//! `latent eval`: quality of a model.

mod asking;
mod choice;
mod corpus;
mod failure;
mod kl;
mod perplexity;
mod questions;
mod report;
mod results;
mod retrieval;
mod routing;
mod weights;

use crate::args::{EvalArgs, EvalCommand};
use anyhow::Result;

pub(crate) use corpus::bos;
pub(crate) use failure::failed;

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
