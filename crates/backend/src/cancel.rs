//! Cancellation of running steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A token with which any thread can cancel a running step. Clones share their state.
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
        self.0.store(true, Ordering::Relaxed);
    }

    /// Resets the token for the next step.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
