//! The time by which an attempt must have brought more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use ureq::Agent;

/// When an attempt is given up. Another thread enforces it: a server can hold this one inside of a read, for example by TLS records or chunks
/// without content.
pub(crate) struct AttemptDeadline {
    pub(crate) agent: Agent,
    /// None where that is later than the clock counts.
    at: Mutex<Option<Instant>>,
    missed: AtomicBool,
}

impl AttemptDeadline {
    pub(crate) fn new(agent: Agent, time: Duration) -> AttemptDeadline {
        AttemptDeadline {
            agent,
            at: Mutex::new(Instant::now().checked_add(time)),
            missed: AtomicBool::new(false),
        }
    }

    /// Begins anew.
    pub(crate) fn extend(&self, time: Duration) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now().checked_add(time);
    }

    /// Closes the connections of an attempt that is overdue.
    pub(crate) fn enforce(&self) {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let overdue = at.is_some_and(|at| at < Instant::now());
        if overdue && !self.missed.swap(true, Ordering::SeqCst) {
            self.end();
        }
    }

    /// Closes the connections; the agent makes no others.
    pub(crate) fn end(&self) {
        self.agent.clone().shutdown();
    }

    pub(crate) fn missed(&self) -> bool {
        self.missed.load(Ordering::SeqCst)
    }
}
