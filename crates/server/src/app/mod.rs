//! What every request sees.

mod asker;
mod body;

pub(crate) use asker::Asker;

use crate::config::ServerConfig;
use crate::metrics::Metrics;
use crate::store::Store;
use crate::worker::{Engineering, Hook};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// Makes the page of the model's drawing.
pub type Drawing = Arc<dyn Fn() -> Result<String, String> + Send + Sync>;

/// What the caller adds to the server.
#[derive(Clone, Default)]
pub struct Extras {
    /// The model's drawing.
    pub drawing: Option<Drawing>,
    /// Called before each step; for tests of faults.
    pub before_step: Option<Hook>,
}

/// What every request sees.
pub(crate) struct App {
    pub(crate) config: ServerConfig,
    pub(crate) engineering: Arc<Engineering>,
    pub(crate) metrics: Metrics,
    pub(crate) store: Mutex<Store>,
    pub(crate) extras: Extras,
    pub(crate) drawn: Mutex<Option<Arc<str>>>,
    /// Bytes of bodies that are being read.
    body_bytes: AtomicUsize,
}

impl App {
    pub(crate) fn new(config: ServerConfig, engineering: Arc<Engineering>, extras: Extras) -> App {
        let store = Mutex::new(Store::new(config.limits.store_bytes));
        App {
            config,
            engineering,
            metrics: Metrics::new(),
            store,
            extras,
            drawn: Mutex::new(None),
            body_bytes: AtomicUsize::new(0),
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // the engine's thread must not wait for commands for ever
        self.engineering.drain();
    }
}
