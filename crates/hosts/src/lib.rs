//! One model on several ranks: rank 0 schedules steps, and every rank runs them on its part.
//!
//! * [`Hosts`]: a rank's view of the job: the partition and the communicator.
//! * [`Leader`]: a [`BackendModel`](latent_backend::BackendModel) that runs rank 0's part and
//!   forwards each step and each KV cache operation to the other ranks. To its caller it looks like
//!   a local model.
//! * [`follow`]: the loop of the other ranks until rank 0 ends.
//! * [`agree`]: checks facts that must be equal on all ranks, and takes the minimum of others.
//! * [`files`]: the model files of each rank, and a check that all ranks have the same model.
//! * [`predict`]: proposes a partition for given hosts and predicts its speed.
//! * [`slowest_link`]: measures the links between ranks.
//! * [`local_ranks`]: ranks that are threads of one process, for tests.
//!
//! ```
//! use latent_backend::{Channel, Communicator};
//! let ranks = latent_hosts::local_ranks(2);
//! ranks[0].send(1, Channel::Commands, b"step")?;
//! let mut message = Vec::new();
//! ranks[1].receive(0, Channel::Commands, &mut message)?;
//! assert_eq!(message, b"step");
//! # Ok::<(), latent_backend::RankError>(())
//! ```
#![forbid(unsafe_code)]

pub mod agree;
mod command;
mod exchange;
pub mod files;
mod follower;
mod guard;
mod leader;
mod local;
pub mod predict;
mod store;
mod times;
mod wire;

pub use exchange::slowest_link;
pub use follower::follow;
pub use leader::Leader;
pub use local::{LocalRank, local_ranks};

use latent_backend::{Communicator, RankError};
use latent_graph::Partition;
use std::fmt;
use std::sync::Arc;

/// How this process takes part in a job of several ranks.
#[derive(Clone)]
pub struct Hosts {
    /// How the ranks share the model.
    pub partition: Partition,
    pub communicator: Arc<dyn Communicator>,
}

impl Hosts {
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}, {}", self.communicator.rank(), self.communicator.ranks(), self.partition)
    }
}

/// The error of a malformed message.
fn wrong_message(communicator: &dyn Communicator, rank: usize, problem: String) -> RankError {
    RankError::Message { rank, host: communicator.host(rank), problem }
}
