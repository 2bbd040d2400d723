//! The processes that mpirun starts and that share one model: rank 0 runs the command, the others follow it.

use crate::{exit, interrupt, job};
use anyhow::Result;
use latent_backend::Backend;
use latent_engine::{Engine, EngineError, EngineOptions, Hosts, Rank};
use latent_formats::Checkpoint;
use latent_graph::Partition;
use std::sync::Arc;

/// How this process takes part in running a model that several share; none where it is alone.
///
/// # Errors
/// A partition in a build without MPI; an MPI that cannot be used.
pub(crate) fn hosts(partition: Option<&Partition>) -> Result<Option<Hosts>> {
    job::hosts(partition).map_err(|error| match error {
        // a rank that does not come up may do so the next time
        error if cfg!(feature = "mpi") => error.into(),
        error => exit::UsageError(error.to_string()).into(),
    })
}

/// Whether this process only follows another one, so that its command has nothing to read or to print.
pub(crate) fn follows(partition: Option<&Partition>) -> Result<bool> {
    Ok(hosts(partition)?.is_some_and(|hosts| hosts.rank() > 0))
}

/// Ends this process's part in the job, all others with it where it failed. To be called last; returns the exit code.
pub(crate) fn end(code: u8, failed: bool) -> u8 {
    let result = if failed { Ok(()) } else { job::finish() };
    let lost = result.is_err();
    let code = result.map_or_else(|error| exit::code(Err(error.into())), |()| code);
    if failed || lost {
        job::abort(code);
    }
    code
}

/// Loads a model; a rank that follows does so from then on, and ends the process.
pub(crate) fn load(
    backend: &dyn Backend,
    checkpoint: &Arc<Checkpoint>,
    options: &EngineOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Engine, EngineError> {
    match Engine::load_rank(backend, checkpoint, options, progress)? {
        Rank::Leads(engine) => Ok(*engine),
        Rank::Follows(follower) => {
            // what mpirun ends with a signal has nothing to save
            let at_once = interrupt::at_once();
            let result = follower.run();
            drop(at_once);
            let failed = result.is_err();
            std::process::exit(i32::from(end(exit::code(result.map_err(Into::into)), failed)))
        }
    }
}

/// Follows rank 0 through every load of one model, until rank 0 ends.
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
            Err(error) if error.is_of_ended_rank() => return Ok(()),
            other => other?,
        }
    }
}
