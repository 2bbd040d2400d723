//! Messages between the ranks of a model.

use crate::pulse::ThreadPulse;
use std::sync::Arc;

/// Transport between the ranks that share a model. Messages from one rank on one channel arrive in
/// order. A lost message always causes an error.
pub trait Communicator: Send + Sync {
    fn rank(&self) -> usize;

    fn ranks(&self) -> usize;

    /// The name of a rank's host in errors.
    fn host(&self, rank: usize) -> String;

    /// Sends a message without waiting for its receipt.
    fn send(&self, to: usize, channel: Channel, message: &[u8]) -> Result<(), RankError>;

    /// Waits for the next message of a rank, which replaces the contents of `message`.
    ///
    /// # Errors
    /// [`RankError`] when any rank is lost or reports a failure.
    fn receive(&self, from: usize, channel: Channel, message: &mut Vec<u8>) -> Result<(), RankError>;

    /// Informs all other ranks that this rank ends, and why, so that they do not wait for it.
    fn fail(&self, cause: &str);

    /// The progress counter of this rank's threads, if hangs are detected.
    fn pulse(&self) -> Option<Arc<ThreadPulse>> {
        None
    }
}

/// The channel of a message. Messages of one channel keep their order; those of different channels
/// may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Values of a step.
    Values,
    /// Commands of rank 0.
    Commands,
    /// Replies to commands.
    Answers,
}

impl Channel {
    pub const ALL: [Channel; 3] = [Channel::Values, Channel::Commands, Channel::Answers];
}

/// A failure of another rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    #[error("lost rank {rank} on host {host}: {cause}")]
    Lost { rank: usize, host: String, cause: String },
    #[error("rank {rank} on host {host} has ended")]
    Ended { rank: usize, host: String },
    #[error("rank {rank} on host {host} failed: {cause}")]
    Failed { rank: usize, host: String, cause: String },
    #[error(transparent)]
    Differs(Box<RankDifference>),
    #[error("rank {rank} on host {host} sent {problem} (please report this)")]
    Message { rank: usize, host: String, problem: String },
    /// The transport between ranks cannot be started, or not used as requested.
    #[error("{0}")]
    Setup(String),
}

/// A forbidden difference between a rank and another one, usually rank 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} on host {host} differs from rank {other} in {what}: {found} instead of {expected}; {advice}"
)]
pub struct RankDifference {
    pub rank: usize,
    /// Where it runs.
    pub host: String,
    pub other: usize,
    pub what: String,
    /// The rank's value.
    pub found: String,
    /// The other rank's value.
    pub expected: String,
    /// What to do.
    pub advice: String,
}
