//! Cancelling jobs from other threads.

use super::job::JobId;
use latent_backend::CancelToken;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Cancels jobs from any thread, also while a step runs. Clones cancel the same scheduler's jobs.
#[derive(Clone, Debug, Default)]
pub struct Canceller {
    shared: Arc<Mutex<CancelledJobs>>,
}

/// What was cancelled since the scheduler looked last, and what runs now.
#[derive(Debug, Default)]
struct CancelledJobs {
    jobs: HashSet<JobId>,
    in_step: Vec<JobId>,
    /// Stops the running step. Each step has its own, so that a late cancel stops no other.
    step: CancelToken,
}

impl Canceller {
    /// Cancels a job: within one phase if the running step has only cancelled jobs, otherwise at
    /// the end of the step. Unknown and finished jobs are ignored.
    pub fn cancel(&self, job: JobId) {
        let mut shared = self.shared();
        shared.jobs.insert(job);
        let CancelledJobs { jobs, in_step, step } = &*shared;
        if !in_step.is_empty() && in_step.iter().all(|job| jobs.contains(job)) {
            step.cancel();
        }
    }

    /// Ends the running step after its phase, without effect on any job: the next step runs what this one would have run. For programs that want
    /// their scheduler back soon, to drop it.
    pub fn stop_step(&self) {
        self.shared().step.cancel();
    }

    /// A step with these jobs begins; returns what stops it.
    pub(super) fn begin_step(&self, jobs: Vec<JobId>) -> CancelToken {
        let mut shared = self.shared();
        let step = CancelToken::new();
        if !jobs.is_empty() && jobs.iter().all(|job| shared.jobs.contains(job)) {
            step.cancel();
        }
        (shared.in_step, shared.step) = (jobs, step.clone());
        step
    }

    /// It has ended.
    pub(super) fn end_step(&self) {
        let mut shared = self.shared();
        shared.in_step.clear();
        shared.step = CancelToken::new();
    }

    /// The jobs that were cancelled since the last call.
    pub(super) fn take(&self) -> HashSet<JobId> {
        std::mem::take(&mut self.shared().jobs)
    }

    /// Every change is whole before anything can panic.
    fn shared(&self) -> MutexGuard<'_, CancelledJobs> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
