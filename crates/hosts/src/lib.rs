//! One model on several ranks: rank 0 decides, the others do the same steps on their parts.
//!
//! * [`Hosts`]: how a rank takes part: the partition, and what carries messages.
//! * [`Leader`]: a [`Model`](latent_backend::Model) over rank 0's own part that tells the others each step and each operation on the KV cache. Whoever holds it
//!   need not know that there are others.
//! * [`follow`]: what the others do until rank 0 ends.
//! * [`agree`]: what must be the same on all ranks, and what all take the least of.
//! * [`files`]: which files of the model each rank has, and that those of two ranks are the same.
//! * [`predict`]: which of several hosts should have what of a model, and how fast it is then.
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

/// How this process takes part in running a model.
#[derive(Clone)]
pub struct Hosts {
    /// How the ranks share the model.
    pub partition: Partition,
    /// What carries their messages.
    pub communicator: Arc<dyn Communicator>,
}

impl Hosts {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}, {}", self.communicator.rank(), self.communicator.ranks(), self.partition)
    }
}

/// The error of a message that is not as it must be.
fn wrong_message(communicator: &dyn Communicator, rank: usize, problem: String) -> RankError {
    RankError::Message { rank, host: communicator.host(rank), problem }
}
