//! Jobs submitted to the scheduler.

use crate::cache::CacheSalt;
use crate::embedding::Pooling;
use crate::generation::LogitsProcessor;
use crate::request::Request;
use std::time::Instant;

/// Names a job from its submission on. Later jobs have larger ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// Whose job it is: tokens are shared evenly between keys, whatever the number of jobs of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FairnessKey(pub u64);

/// An answer to be generated, or a text to be embedded.
#[derive(Default)]
pub struct Job {
    /// The prompt, and how it is answered.
    pub request: Request,
    /// What changes the logits before each token is chosen, in this order.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
    /// Jobs share cached prefixes with jobs of the same salt only.
    pub salt: CacheSalt,
    /// Whose job it is.
    pub key: FairnessKey,
    /// Jobs of a larger number go first, and may take the place of running jobs of a smaller one.
    pub priority: i32,
    /// The time after which the job fails with [`JobError::Deadline`](super::JobError::Deadline).
    pub deadline: Option<Instant>,
    /// The whole prompt runs: nothing of it is taken from the prefix cache, which gets its rows all the same.
    pub uncached: bool,
    /// The prompt's embedding is wanted, in place of an answer.
    pub embed: bool,
    /// Which hidden states make the embedding.
    pub pooling: Pooling,
}

/// A further answer to a job's prompt.
#[derive(Default)]
pub struct JobChoice {
    /// Seed of its sampling.
    pub seed: u64,
    /// What changes its logits, in this order.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
}
