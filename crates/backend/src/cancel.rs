//! Cancellation of running steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A token with which any thread can cancel a piece of work: a step, or an answer. Clones share
/// their state. A cancelled token stays cancelled, so each piece of work needs a token of its own.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels: a running step returns [`BackendError::Cancelled`](crate::BackendError::Cancelled)
    /// after its current phase.
    pub fn cancel(&self) {
        // Relaxed: the flag publishes no other data.
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
