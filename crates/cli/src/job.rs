//! The MPI job, if this process is a rank of one.

#[cfg(not(feature = "mpi"))]
pub(crate) use alone::{abort, failed, finish, hosts, hurry, problem};
#[cfg(feature = "mpi")]
pub(crate) use over_mpi::{abort, failed, finish, hosts, hurry, problem};
// A build without MPI also detects mpirun, to explain that it cannot take part.
pub(crate) use latent_mpi::launched;

/// Error of a build without MPI for flags that need it.
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

    /// Timeout for all ranks to start.
    const START_TIMEOUT: Duration = Duration::from_secs(60);

    /// MPI can be initialized only once per process.
    static RANK: Mutex<Option<Arc<MpiRank>>> = Mutex::new(None);

    /// The partition and communicator of this process; `None` if it runs the model alone.
    pub(crate) fn hosts(partition: Option<&Partition>) -> Result<Option<Hosts>, RankError> {
        if partition.is_none() && !latent_mpi::launched() {
            return Ok(None);
        }
        let mut started = RANK.lock().unwrap_or_else(PoisonError::into_inner);
        let rank = match &*started {
            Some(rank) => Arc::clone(rank),
            None => Arc::clone(started.insert(Arc::new(latent_mpi::start(START_TIMEOUT)?))),
        };
        // `mpirun -n 1` without --partition is an ordinary run: no stage has a peer.
        if partition.is_none() && rank.ranks() == 1 {
            return Ok(None);
        }
        let partition = partition.cloned().unwrap_or_else(|| Partition::pipeline(rank.ranks()));
        Ok(Some(Hosts { partition, communicator: rank }))
    }

    fn rank() -> Option<Arc<MpiRank>> {
        RANK.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends the other ranks, if any, the cause why this one ends.
    pub(crate) fn failed(cause: &str) {
        if let Some(rank) = rank() {
            rank.fail(cause);
        }
    }

    /// Shortens the timeout for silent ranks.
    pub(crate) fn hurry() {
        if let Some(rank) = rank() {
            // This process was told to end, perhaps because mpirun has lost a rank.
            rank.hurry();
        }
    }

    /// The error of another rank, if any.
    pub(crate) fn problem() -> Option<RankError> {
        rank()?.problem()
    }

    /// Leaves the job together with the other ranks. Must be called last.
    pub(crate) fn finish() -> Result<(), RankError> {
        rank().map_or(Ok(()), |rank| rank.finish())
    }

    /// Aborts all ranks of the job with an exit code. Must be called last; it may return.
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
