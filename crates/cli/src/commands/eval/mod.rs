//! `latent eval`: how good a model is.

mod corpus;
mod failure;
mod kl;
mod perplexity;
mod results;

use crate::args::{EvalArgs, EvalCommand};
use anyhow::Result;

pub(crate) use corpus::bos;
pub(crate) use failure::failed;

pub(super) fn run(args: &EvalArgs) -> Result<()> {
    match &args.command {
        EvalCommand::Perplexity(args) => perplexity::run(args),
        EvalCommand::Kl(args) => kl::run(args),
    }
}
