//! Events of a job.

use super::job::JobId;
use crate::draft_kind::DraftCount;
use crate::error::EngineError;
use crate::generation::ChosenToken;
use crate::request::StopReason;
use crate::sampling::ParamError;
use std::time::Duration;

/// A callback for the events of jobs.
pub type JobListener<'a> = &'a mut dyn FnMut(JobId, JobEvent);

/// An event of a job. Each job has one final event: [`Finished`](Self::Finished),
/// [`Embedded`](Self::Embedded) or [`Failed`](Self::Failed). Its blocks of the KV cache are
/// released before that.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum JobEvent {
    /// The job runs for the first time.
    Started {
        /// Tokens of the prompt that were in the prefix cache.
        cached_tokens: usize,
        /// How many of them came from the disk.
        from_disk: usize,
        /// Time since the submission.
        queued: Duration,
    },
    /// Part of the prompt has run.
    Prompt {
        /// Tokens of the prompt that are in the KV cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was chosen.
    Token(ChosenToken),
    /// The answer has ended.
    Finished {
        /// Why it ended. [`StopReason::Interrupted`] if the job was cancelled.
        reason: StopReason,
        /// Text that was held back until now because it could have become a stop string or was part
        /// of a character.
        rest: String,
        /// Tokens and times.
        usage: JobUsage,
    },
    /// The embedding of the prompt.
    Embedded {
        /// The pooled last hidden states (after the final norm). The length is the model's hidden
        /// size, or, without pooling, that times the number of tokens.
        values: Vec<f32>,
        /// The length that the embedding was divided by.
        length: f32,
        /// Tokens and times.
        usage: JobUsage,
    },
    /// The job has failed; no further output follows.
    Failed(JobError),
}

impl JobEvent {
    /// Whether this is the final event of its job.
    pub fn is_last(&self) -> bool {
        matches!(self, JobEvent::Finished { .. } | JobEvent::Embedded { .. } | JobEvent::Failed(_))
    }
}

/// Tokens and times of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JobUsage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// How many of them were in the prefix cache when the job started.
    pub cached: usize,
    /// Chosen tokens, the one that ended the answer included.
    pub completion: usize,
    /// Tokens that context shifts discarded.
    pub discarded: usize,
    /// Tokens that were drafted, and how many of them were accepted.
    pub drafts: DraftCount,
    /// How often the job was preempted and ran its tokens again.
    pub preemptions: u32,
    /// Time from submission to the first step.
    pub queued: Duration,
    /// Time from the first step to the end of the prompt, or of a job that ends before.
    pub prompt_time: Duration,
    /// Time from the end of the prompt to the end of the job.
    pub generate_time: Duration,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum JobError {
    /// Its deadline has passed.
    #[error(
        "the deadline passed after {completion} generated tokens; request fewer tokens or allow more time"
    )]
    Deadline { completion: usize },
    /// A logits processor of the job cannot continue, such as a grammar that is too ambiguous. The
    /// request is at fault.
    #[error("{0}")]
    Constraint(String),
    /// No token can be chosen from the job's logits, its own code has panicked, or it cannot run
    /// for another reason that does not concern other jobs.
    #[error("{0}")]
    Job(String),
    /// The job's step has failed as a whole. Load the model again.
    #[error("the engine failed: {0}")]
    Engine(String),
}

impl From<EngineError> for JobError {
    fn from(error: EngineError) -> JobError {
        match error {
            EngineError::Constraint(problem) => JobError::Constraint(problem),
            error => JobError::Job(error.to_string()),
        }
    }
}

/// Why a job was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum Refusal {
    /// Too many jobs wait.
    #[error(
        "the queue is full: {waiting} requests with {waiting_tokens} prompt tokens are waiting; try again in \
         {} s",
        retry_after.as_secs()
    )]
    Full {
        waiting: usize,
        waiting_tokens: usize,
        /// Estimated time until the queue has room, from the measured speed: whole seconds, at
        /// least one.
        retry_after: Duration,
    },
    /// The prompt does not fit into the context.
    #[error(
        "the prompt has {tokens} tokens, but the context holds {context}, including at least one generated \
         token; shorten the prompt"
    )]
    TooLong { tokens: usize, context: usize },
    /// A parameter of the request is out of its range.
    #[error(transparent)]
    Parameter(#[from] ParamError),
    /// The model or the scheduler does not support the request.
    #[error("{0}")]
    Invalid(String),
    /// The scheduler accepts no more jobs.
    #[error("the server is shutting down")]
    Closed,
}
