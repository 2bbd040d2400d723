//! Cancelling jobs from other threads.

use super::job::JobId;
use latent_backend::CancelToken;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Cancels jobs from any thread, also while a step runs. Clones cancel the same scheduler's jobs.
#[derive(Clone, Debug)]
pub struct Canceller {
    shared: Arc<Mutex<CancelledJobs>>,
    token: CancelToken,
}

/// What was cancelled since the scheduler looked last, and what runs now.
#[derive(Debug, Default)]
struct CancelledJobs {
    jobs: HashSet<JobId>,
    in_step: Vec<JobId>,
}

impl Canceller {
    pub(super) fn new(token: CancelToken) -> Canceller {
        Canceller { shared: Arc::default(), token }
    }

    /// What stops a running step.
    pub(super) fn token(&self) -> CancelToken {
        self.token.clone()
    }

    /// Cancels a job: within one phase if the running step has only cancelled jobs, otherwise at
    /// the end of the step. Unknown and finished jobs are ignored.
    pub fn cancel(&self, job: JobId) {
        let mut shared = self.shared();
        shared.jobs.insert(job);
        let CancelledJobs { jobs, in_step } = &*shared;
        if !in_step.is_empty() && in_step.iter().all(|job| jobs.contains(job)) {
            self.token.cancel();
        }
    }

    /// A step with these jobs begins.
    pub(super) fn begin_step(&self, jobs: Vec<JobId>) {
        let mut shared = self.shared();
        self.token.reset();
        let all = !jobs.is_empty() && jobs.iter().all(|job| shared.jobs.contains(job));
        shared.in_step = jobs;
        if all {
            self.token.cancel();
        }
    }

    /// It has ended.
    pub(super) fn end_step(&self) {
        let mut shared = self.shared();
        shared.in_step.clear();
        self.token.reset();
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
