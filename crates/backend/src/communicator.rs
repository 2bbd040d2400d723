//! What ranks of one model say to each other.

use crate::pulse::Pulse;
use std::sync::Arc;

/// Messages between the ranks that share a model. Those from one rank on one channel arrive in the order in which they were sent; a message is never lost
/// without an error.
pub trait Communicator: Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn ranks(&self) -> usize;

    /// The host that a rank runs on, as errors name it.
    fn host(&self, rank: usize) -> String;

    /// Sends a message. It does not wait until somebody receives it.
    ///
    /// # Errors
    /// [`RankError`] when a rank is gone.
    fn send(&self, to: usize, channel: Channel, message: &[u8]) -> Result<(), RankError>;

    /// Waits for the next message of a rank, which takes the place of what `message` held.
    ///
    /// # Errors
    /// [`RankError`] when a rank, this one or another, is gone or says that it has failed.
    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError>;

    /// Tells all others that this rank ends, and why, so that none waits for it.
    fn fail(&self, cause: &str);

    /// What this rank's threads tell of how far they are, where somebody looks whether they hang.
    fn pulse(&self) -> Option<Arc<Pulse>> {
        None
    }
}

/// What a message is about: messages of one channel do not overtake each other, those of different ones may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Values of a step.
    Values,
    /// What rank 0 tells others to do.
    Commands,
    /// What they answer.
    Answers,
}

impl Channel {
    /// Every channel.
    pub const ALL: [Channel; 3] = [Channel::Values, Channel::Commands, Channel::Answers];
}

/// Another rank does not do its part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// It is gone, or does not answer.
    #[error("rank {rank} on host {host} is gone: {cause}")]
    Lost {
        /// The rank.
        rank: usize,
        /// Where it ran.
        host: String,
        /// How that was noticed.
        cause: String,
    },
    /// It has ended as it should, and does not answer any more.
    #[error("rank {rank} on host {host} has ended")]
    Ended {
        /// The rank.
        rank: usize,
        /// Where it ran.
        host: String,
    },
    /// It said that it cannot go on.
    #[error("rank {rank} on host {host} failed: {cause}")]
    Failed {
        /// The rank.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What it said.
        cause: String,
    },
    /// Ranks do not fit together.
    #[error(transparent)]
    Differs(Box<Difference>),
    /// A message is not what this rank waits for: an error of Latent.
    #[error("rank {rank} on host {host} sent {problem} (please report this)")]
    Message {
        /// The rank.
        rank: usize,
        /// Where it runs.
        host: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The machinery between ranks cannot be started, or not used as asked.
    #[error("{0}")]
    Setup(String),
}

/// Something in which a rank differs from another one, mostly rank 0, and must not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} on host {host} differs from rank {other} in {what}: {found}, there {expected}; {advice}"
)]
pub struct Difference {
    /// The rank.
    pub rank: usize,
    /// Where it runs.
    pub host: String,
    /// The other rank.
    pub other: usize,
    /// What differs.
    pub what: String,
    /// What it has.
    pub found: String,
    /// What the other one has.
    pub expected: String,
    /// What to do.
    pub advice: String,
}
