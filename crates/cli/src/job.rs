//! The MPI job that this process may be a rank of.

#[cfg(not(feature = "mpi"))]
pub(crate) use alone::{end, failed, hosts};
#[cfg(feature = "mpi")]
pub(crate) use over_mpi::{end, failed, hosts};

#[cfg(feature = "mpi")]
mod over_mpi {
    use latent_backend::{Communicator, RankError};
    use latent_engine::Hosts;
    use latent_graph::Partition;
    use latent_mpi::MpiRank;
    use std::sync::{Arc, Mutex, PoisonError};

    /// MPI is started once in a process.
    static RANK: Mutex<Option<Arc<MpiRank>>> = Mutex::new(None);

    /// How this process takes part in running a model that several share; none where it is alone.
    pub(crate) fn hosts(partition: Option<&Partition>) -> Result<Option<Hosts>, RankError> {
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

    /// Tells the other ranks, if there are any, why this one ends.
    pub(crate) fn failed(cause: &str) {
        if let Some(rank) = &*RANK.lock().unwrap_or_else(PoisonError::into_inner) {
            rank.fail(cause);
        }
    }

    /// Ends this process's part in the job, all others with it where it failed. To be called last; gives the exit code back.
    pub(crate) fn end(code: u8, failed: bool) -> u8 {
        let rank = RANK.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(rank) = rank {
            rank.finish(failed.then_some(i32::from(code)));
        }
        code
    }
}

#[cfg(not(feature = "mpi"))]
mod alone {
    use latent_backend::RankError;
    use latent_engine::Hosts;
    use latent_graph::Partition;

    pub(crate) fn hosts(partition: Option<&Partition>) -> Result<Option<Hosts>, RankError> {
        let Some(partition) = partition else { return Ok(None) };
        Err(RankError::Setup(format!(
            "--partition {partition}: this program was built without MPI; build it with --features mpi (on Debian with openmpi-bin, libopenmpi-dev and \
             libclang-dev), and start it with mpirun -n {}",
            partition.ranks()
        )))
    }

    pub(crate) fn failed(_cause: &str) {}

    pub(crate) fn end(code: u8, _failed: bool) -> u8 {
        code
    }
}
