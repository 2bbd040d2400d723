//! Ranks of an MPI job.
//!
//! One thread of each process makes all MPI calls: it sends the messages of other threads,
//! receives, and sends four heartbeats per second. So every rank notices a lost or stopped process,
//! whatever it waits for.
//!
//! The same thread watches the computing threads by their
//! [`ThreadPulse`](latent_backend::ThreadPulse). If they make no progress within a step for too
//! long, it tells the other ranks that this rank hangs.
//!
//! Without the feature `mpi` the crate has only [`launched`].
#![forbid(unsafe_code)]

#[cfg(feature = "mpi")]
mod mailbox;
#[cfg(feature = "mpi")]
mod mpi_thread;
#[cfg(feature = "mpi")]
mod rank;

#[cfg(feature = "mpi")]
pub use rank::{MpiRank, start};

/// Whether a launcher started this process as one of several ranks.
pub fn launched() -> bool {
    // Set by Open MPI's mpirun, by PMI launchers such as MPICH's and Slurm's, and by PMIx.
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"].into_iter().any(|name| std::env::var_os(name).is_some())
}
