//! `--partition` in commands that run no ranks.

use crate::args::{EngineArgs, GraphArgs};
use crate::exit::UsageError;
use anyhow::Result;
use latent_graph::{GraphError, ModelConfig};

/// Refuses `--partition` in a command that runs no model, or runs it in one process only.
pub(super) fn refuse_ranks(command: &str, args: &EngineArgs) -> Result<()> {
    let Some(partition) = &args.partition else { return Ok(()) };
    Err(UsageError(format!(
        "--partition {partition}: `latent {command}` works on the whole model: omit it (for the plan of a \
         rank: latent graph plan --partition {partition} --rank N)"
    ))
    .into())
}

/// The config of the requested rank; `None` without `--partition`.
pub(super) fn part(args: &GraphArgs, config: &ModelConfig) -> Result<Option<ModelConfig>> {
    let Some(partition) = &args.model.engine.partition else { return Ok(None) };
    let (rank, ranks) = (args.rank, partition.ranks());
    if rank >= ranks {
        return Err(UsageError(format!(
            "--rank {rank}: --partition {partition} has the ranks 0 to {}",
            ranks - 1
        ))
        .into());
    }
    if args.layers.is_some() || args.model.engine.draft.has_mtp() {
        let problem = format!("--partition {partition}: cannot be combined with --layers or --draft");
        return Err(UsageError(problem).into());
    }
    Ok(Some(config.of_part(partition.part(config, rank, ranks).map_err(GraphError::from)?)))
}
