//! Ranks of an MPI job.
//!
//! One thread of each process speaks to MPI, and to nothing else: it sends what others want to send, takes in what arrives, and tells the other ranks four times
//! a second that it is there. So a process that is stopped or gone is noticed by all others, whatever they wait for. That the threads which compute do so, it sees
//! by their [`ThreadPulse`](latent_backend::ThreadPulse): where they are in a step and nothing is done for too long, it tells the others that this rank hangs.
//!
//! Without the feature `mpi` there is only [`launched`].
#![forbid(unsafe_code)]

#[cfg(feature = "mpi")]
mod office;
#[cfg(feature = "mpi")]
mod rank;
#[cfg(feature = "mpi")]
mod speaker;

#[cfg(feature = "mpi")]
pub use rank::{MpiRank, start};

/// Whether this process was started as one of several ranks: by Open MPI's mpirun, or by a launcher that speaks PMI.
pub fn launched() -> bool {
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"].into_iter().any(|name| std::env::var_os(name).is_some())
}
