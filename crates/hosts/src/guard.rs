//! Failure handling of collective operations.

use latent_backend::{BackendError, Communicator, ThreadPulse};
use std::sync::{Arc, Mutex, PoisonError};

/// Wraps the collective operations of rank 0: steps, and operations on the KV cache.
pub(crate) struct Guard {
    communicator: Arc<dyn Communicator>,
    pulse: Option<Arc<ThreadPulse>>,
    /// The first failure. Other ranks may be anywhere in the failed operation, so no later
    /// operation can run.
    failed: Mutex<Option<String>>,
}

impl Guard {
    pub(crate) fn new(communicator: Arc<dyn Communicator>) -> Guard {
        let pulse = communicator.pulse();
        Guard { communicator, pulse, failed: Mutex::default() }
    }

    /// Runs a collective operation. If it fails, the other ranks receive the reason, and later
    /// operations are refused.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
        if let Some(cause) = &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            let problem = format!("the ranks of this model have stopped: {cause}; start them again");
            return Err(BackendError::Unsupported(problem));
        }
        let work = self.pulse.as_ref().map(|pulse| pulse.work());
        let result = run();
        drop(work);
        if let Err(error) = &result
            // These two are returned before any command was sent, or after all ranks have finished
            // the step.
            && !matches!(error, BackendError::Cancelled | BackendError::ForeignStore)
        {
            // Followers wait for rank 0's next message, so they must learn that none will come.
            self.communicator.fail(&error.to_string());
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
        result
    }

    /// Runs the caller's work within a step, without a time limit: a caller that writes logits to a
    /// pipe may block on the reader.
    pub(crate) fn outside(&self, run: impl FnOnce()) {
        let _rest = self.pulse.as_ref().map(|pulse| pulse.rest());
        run();
    }
}
