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

#[derive(Debug, Default)]
struct CancelledJobs {
    /// Cancelled since the scheduler took the set last.
    jobs: HashSet<JobId>,
    /// The jobs of the running step.
    in_step: Vec<JobId>,
    /// Stops the running step. Each step has its own token, so that a late cancellation does not
    /// stop the next step.
    step: CancelToken,
}

impl Canceller {
    /// Cancels a job: within one phase if the running step has only cancelled jobs, otherwise at
    /// the end of the step. Unknown and finished jobs are ignored.
    pub fn cancel(&self, job: JobId) {
        let mut shared = self.shared();
        shared.jobs.insert(job);
        let CancelledJobs { jobs, in_step, step } = &*shared;
        // A step is stopped only if no job in it continues: the rows of the others would be lost.
        if !in_step.is_empty() && in_step.iter().all(|job| jobs.contains(job)) {
            step.cancel();
        }
    }

    /// Ends the running step after its current phase. No job ends: the next step runs the same
    /// tokens. For programs that want to drop the scheduler soon.
    pub fn stop_step(&self) {
        self.shared().step.cancel();
    }

    /// Notes that a step with these jobs begins. Returns the token that stops it.
    pub(super) fn begin_step(&self, jobs: Vec<JobId>) -> CancelToken {
        let mut shared = self.shared();
        let step = CancelToken::new();
        // Jobs that were cancelled after `end_cancelled` has looked, while the step was composed.
        if !jobs.is_empty() && jobs.iter().all(|job| shared.jobs.contains(job)) {
            step.cancel();
        }
        (shared.in_step, shared.step) = (jobs, step.clone());
        step
    }

    /// Notes that the step has ended.
    pub(super) fn end_step(&self) {
        let mut shared = self.shared();
        shared.in_step.clear();
        shared.step = CancelToken::new();
    }

    /// Takes the jobs that were cancelled since the last call.
    pub(super) fn take(&self) -> HashSet<JobId> {
        std::mem::take(&mut self.shared().jobs)
    }

    fn shared(&self) -> MutexGuard<'_, CancelledJobs> {
        // A poisoned lock is usable: no update of the state can panic halfway.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
