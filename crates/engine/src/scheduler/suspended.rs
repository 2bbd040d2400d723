//! Jobs between two engines.

use super::cancel::Canceller;
use super::fairness::Fairness;
use super::job::JobId;
use super::stats::SchedulerStats;
use super::task::ScheduledJob;

/// The jobs of a scheduler without an engine. Those that ran wait, and run their tokens again; what they have answered stays answered.
pub struct SuspendedJobs {
    pub(super) waiting: Vec<ScheduledJob>,
    pub(super) canceller: Canceller,
    pub(super) next_id: u64,
    pub(super) fairness: Fairness,
    pub(super) counts: SchedulerStats,
    pub(super) closed: bool,
}

impl SuspendedJobs {
    /// Their ids.
    pub fn ids(&self) -> impl Iterator<Item = JobId> {
        self.waiting.iter().map(|task| task.id)
    }
}
