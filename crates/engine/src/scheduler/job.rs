//! Jobs submitted to the scheduler.

use crate::cache::CacheSalt;
use crate::embedding::Pooling;
use crate::generation::LogitsProcessor;
use crate::request::Request;
use std::time::Instant;

/// Identifies a job. Later jobs have larger ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// The tenant of a job. Tokens are shared evenly between keys, regardless of the number of jobs of
/// each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FairnessKey(pub u64);

/// An answer to be generated, or a text to be embedded.
#[derive(Default)]
pub struct Job {
    /// The prompt and the parameters of its answer.
    pub request: Request,
    /// Logits processors, which are called before each token is chosen, in this order.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
    /// Jobs share cached prefixes with jobs of the same salt only.
    pub salt: CacheSalt,
    /// The tenant.
    pub key: FairnessKey,
    /// Jobs with a larger number run first, and may preempt running jobs with a smaller one.
    pub priority: i32,
    /// The time after which the job fails with [`JobError::Deadline`](super::JobError::Deadline).
    pub deadline: Option<Instant>,
    /// Whether the whole prompt runs, without rows from the prefix cache. Its own rows are cached
    /// nevertheless.
    pub uncached: bool,
    /// Whether to return the prompt's embedding instead of an answer.
    pub embed: bool,
    /// How hidden states are pooled into the embedding.
    pub pooling: Pooling,
}

/// A further answer to a job's prompt.
#[derive(Default)]
pub struct JobChoice {
    /// Seed of the sampler.
    pub seed: u64,
    /// Logits processors, in this order.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
}
