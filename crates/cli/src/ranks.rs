//! The processes that mpirun starts and that share one model: rank 0 runs the command, the others follow it.

use crate::{exit, interrupt};
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
    job::hosts(partition)
}

/// Whether this process only follows another one, so that its command has nothing to read or to print.
///
/// # Errors
/// As for [`hosts`].
pub(crate) fn follows(partition: Option<&Partition>) -> Result<bool> {
    Ok(hosts(partition)?.is_some_and(|hosts| hosts.rank() > 0))
}

/// Refuses a command that is not built for several processes.
///
/// # Errors
/// [`exit::Usage`] where there are several.
pub(crate) fn refuse(what: &str, partition: Option<&Partition>) -> Result<()> {
    match hosts(partition)? {
        None => Ok(()),
        Some(_) => Err(exit::Usage(format!(
            "{what} is not built for a model that several ranks share: start it without mpirun and --partition"
        ))
        .into()),
    }
}

/// Loads a model; a rank that follows does so from then on, and ends the process.
///
/// # Errors
/// As for [`Engine::load_rank`].
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
            std::process::exit(i32::from(end(exit::code(result.map_err(Into::into)))))
        }
    }
}

/// Tells the other ranks, if there are any, why this one ends.
pub(crate) fn failed(cause: &str) {
    job::failed(cause);
}

/// Ends this process's part in the job, all others with it where the exit code is not 0. To be called last; gives the exit code back.
pub(crate) fn end(code: u8) -> u8 {
    job::end(code);
    code
}

#[cfg(feature = "mpi")]
mod job {
    use anyhow::Result;
    use latent_backend::Communicator;
    use latent_engine::Hosts;
    use latent_graph::Partition;
    use latent_mpi::MpiRank;
    use std::sync::{Arc, Mutex, PoisonError};

    /// MPI is started once in a process.
    static RANK: Mutex<Option<Arc<MpiRank>>> = Mutex::new(None);

    pub(super) fn hosts(partition: Option<&Partition>) -> Result<Option<Hosts>> {
        if partition.is_none() && !latent_mpi::launched() {
            return Ok(None);
        }
        let mut started = RANK.lock().unwrap_or_else(PoisonError::into_inner);
        let rank = match &*started {
            Some(rank) => Arc::clone(rank),
            None => Arc::clone(started.insert(Arc::new(latent_mpi::start()?))),
        };
        if partition.is_none() && rank.ranks() == 1 {
            return Ok(None);
        }
        let partition = partition.cloned().unwrap_or_else(|| Partition::pipeline(rank.ranks()));
        Ok(Some(Hosts { partition, communicator: rank }))
    }

    pub(super) fn failed(cause: &str) {
        if let Some(rank) = &*RANK.lock().unwrap_or_else(PoisonError::into_inner) {
            rank.fail(cause);
        }
    }

    pub(super) fn end(code: u8) {
        let rank = RANK.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(rank) = rank {
            rank.finish((code != 0).then_some(i32::from(code)));
        }
    }
}

#[cfg(not(feature = "mpi"))]
mod job {
    use crate::exit::Usage;
    use anyhow::Result;
    use latent_engine::Hosts;
    use latent_graph::Partition;

    pub(super) fn hosts(partition: Option<&Partition>) -> Result<Option<Hosts>> {
        let Some(partition) = partition else { return Ok(None) };
        let problem = format!(
            "--partition {partition}: this program was built without MPI; build it with --features mpi (on Debian with openmpi-bin, libopenmpi-dev and \
             libclang-dev), and start it with mpirun -n {}",
            partition.ranks()
        );
        Err(Usage(problem).into())
    }

    pub(super) fn failed(_cause: &str) {}

    pub(super) fn end(_code: u8) {}
}
