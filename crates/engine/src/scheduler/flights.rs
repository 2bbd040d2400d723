//! The jobs of a step, and of each step in flight.

use super::job::JobId;
use super::task::ScheduledJob;
use crate::advance::AdvanceFlight;
use std::time::Instant;

/// A job's part in a step.
pub(super) struct Member {
    pub(super) id: JobId,
    /// How often it was preempted before.
    pub(super) preemptions: u32,
    /// How many of its tokens are to run.
    pub(super) share: usize,
    /// Whether that is the token which it chose last.
    pub(super) decodes: bool,
}

impl Member {
    /// Whether this is the job, and it has not lost its blocks since the step began.
    pub(super) fn is(&self, task: &ScheduledJob) -> bool {
        self.id == task.id && self.preemptions == task.usage.preemptions
    }
}

/// A step on its way.
pub(super) struct JobFlight {
    pub(super) members: Vec<Member>,
    pub(super) advancing: AdvanceFlight,
    pub(super) began: Instant,
}
