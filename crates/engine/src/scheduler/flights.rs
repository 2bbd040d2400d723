//! The jobs of a step, and of each step in flight.

use super::job::JobId;
use super::task::ScheduledJob;
use crate::advance::AdvanceFlight;
use std::time::Instant;

/// A job's part in a step.
pub(super) struct Member {
    pub(super) id: JobId,
    /// The job's preemption count when the step began.
    pub(super) preemptions: u32,
    /// Number of tokens that run.
    pub(super) share: usize,
    /// Whether the job decodes: the step runs the token that was chosen last.
    pub(super) decodes: bool,
}

impl Member {
    /// Whether `task` is this job and has not lost its blocks since the step began.
    pub(super) fn is(&self, task: &ScheduledJob) -> bool {
        self.id == task.id && self.preemptions == task.usage.preemptions
    }
}

/// A step in flight.
pub(super) struct JobFlight {
    pub(super) members: Vec<Member>,
    pub(super) advancing: AdvanceFlight,
    pub(super) began: Instant,
}
