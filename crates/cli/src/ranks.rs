//! The ranks that mpirun starts. They share one model: rank 0 runs the command, the others follow
//! it.

use crate::{exit, interrupt, job};
use anyhow::Result;
use latent_backend::Backend;
use latent_engine::{Engine, EngineError, EngineOptions, Hosts, Rank};
use latent_formats::Checkpoint;
use latent_graph::Partition;
use std::sync::Arc;

/// The partition and communicator of this process; `None` if it runs the model alone.
///
/// # Errors
/// A partition in a build without MPI, or an MPI that cannot be used.
pub(crate) fn hosts(partition: Option<&Partition>) -> Result<Option<Hosts>> {
    job::hosts(partition).map_err(|error| match error {
        // A rank may fail to start for a passing reason (network, a host that boots), so this is
        // not wrong usage: `serve --restart` tries again unless the code is final.
        error if cfg!(feature = "mpi") => error.into(),
        error => exit::UsageError(error.to_string()).into(),
    })
}

/// Whether this process follows rank 0, so that its command reads and prints nothing.
pub(crate) fn follows(partition: Option<&Partition>) -> Result<bool> {
    Ok(hosts(partition)?.is_some_and(|hosts| hosts.rank() > 0))
}

/// Leaves the MPI job, or aborts it if this rank failed. Must be called last; returns the exit
/// code.
pub(crate) fn end(code: u8, failed: bool) -> u8 {
    // `finish` waits for all ranks. A failed rank must not wait: the others may be blocked on it.
    let result = if failed { Ok(()) } else { job::finish() };
    let lost = result.is_err();
    let code = result.map_or_else(|error| exit::code(Err(error.into())), |()| code);
    if failed || lost {
        job::abort(code);
    }
    code
}

/// Loads a model. On a following rank this call runs the steps of rank 0 and then ends the process.
pub(crate) fn load(
    backend: &dyn Backend,
    checkpoint: &Arc<Checkpoint>,
    options: &EngineOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Engine, EngineError> {
    match Engine::load_rank(backend, checkpoint, options, progress)? {
        Rank::Leads(engine) => Ok(*engine),
        Rank::Follows(follower) => {
            // A following rank holds no conversation or file, so the first signal from mpirun ends
            // it.
            let at_once = interrupt::at_once();
            let result = follower.run();
            drop(at_once);
            let failed = result.is_err();
            std::process::exit(i32::from(end(exit::code(result.map_err(Into::into)), failed)))
        }
    }
}

/// Follows rank 0 through every load of one model until rank 0 ends.
pub(crate) fn follow_all(
    backend: &dyn Backend,
    checkpoint: &Arc<Checkpoint>,
    options: &EngineOptions,
) -> Result<(), EngineError> {
    loop {
        let result = match Engine::load_rank(backend, checkpoint, options, &mut |_, _| {}) {
            Ok(Rank::Follows(follower)) => follower.run(),
            Ok(Rank::Leads(_)) => return Ok(()),
            Err(error) => Err(error),
        };
        match result {
            // Rank 0 ends the job between two loads by leaving it: that is the normal end, not an
            // error.
            Err(error) if error.is_of_ended_rank() => return Ok(()),
            other => other?,
        }
    }
}
