//! The MPI job that this process may be a rank of.

#[cfg(not(feature = "mpi"))]
pub(crate) use alone::{abort, failed, finish, hosts, hurry, problem};
#[cfg(feature = "mpi")]
pub(crate) use over_mpi::{abort, failed, finish, hosts, hurry, problem};
// a build without MPI tells, too, who has started it
pub(crate) use latent_mpi::launched;

/// What a build without MPI says of what takes it.
pub(crate) const WITHOUT_MPI: &str = "this program was built without MPI; build it with --features mpi (on Debian with openmpi-bin, libopenmpi-dev and \
                                      libclang-dev)";

#[cfg(feature = "mpi")]
mod over_mpi {
    use latent_backend::{Communicator, RankError};
    use latent_engine::Hosts;
    use latent_graph::Partition;
    use latent_mpi::MpiRank;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    /// How long all ranks may take to come up.
    const PATIENCE: Duration = Duration::from_secs(60);

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
            None => Arc::clone(started.insert(Arc::new(latent_mpi::start(PATIENCE)?))),
        };
        if partition.is_none() && rank.ranks() == 1 {
            return Ok(None);
        }
        let partition = partition.cloned().unwrap_or_else(|| Partition::pipeline(rank.ranks()));
        Ok(Some(Hosts { partition, communicator: rank }))
    }

    fn rank() -> Option<Arc<MpiRank>> {
        RANK.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the other ranks, if there are any, why this one ends.
    pub(crate) fn failed(cause: &str) {
        if let Some(rank) = rank() {
            rank.fail(cause);
        }
    }

    /// Takes silent ranks for lost soon, since this process was told to end: perhaps because one is gone.
    pub(crate) fn hurry() {
        if let Some(rank) = rank() {
            rank.hurry();
        }
    }

    /// What has gone wrong with another rank, if there are any.
    pub(crate) fn problem() -> Option<RankError> {
        rank()?.problem()
    }

    /// Ends this process's part in the job together with the others. To be called last.
    pub(crate) fn finish() -> Result<(), RankError> {
        rank().map_or(Ok(()), |rank| rank.finish())
    }

    /// Ends all ranks of the job with an exit code. To be called last; it may return.
    pub(crate) fn abort(code: u8) {
        if let Some(rank) = rank() {
            rank.abort(i32::from(code));
        }
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
            "--partition {partition}: {}, and start it with mpirun -n {}",
            super::WITHOUT_MPI,
            partition.ranks()
        )))
    }

    pub(crate) fn failed(_cause: &str) {}

    pub(crate) fn hurry() {}

    pub(crate) fn problem() -> Option<RankError> {
        None
    }

    pub(crate) fn finish() -> Result<(), RankError> {
        Ok(())
    }

    pub(crate) fn abort(_code: u8) {}
}
