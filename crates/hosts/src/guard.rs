//! Collective operations of ranks, and their failure.

use latent_backend::{BackendError, Communicator, ThreadPulse};
use std::sync::{Arc, Mutex, PoisonError};

/// What all that rank 0 tells the others goes through: steps, and operations on the KV cache.
pub(crate) struct Guard {
    communicator: Arc<dyn Communicator>,
    pulse: Option<Arc<ThreadPulse>>,
    /// Why something has failed: other ranks may be anywhere in it, so that nothing can be run any more.
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
            && !matches!(error, BackendError::Cancelled | BackendError::ForeignStore)
        {
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
