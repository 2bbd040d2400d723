//! Events about the models of a server, for `GET /models/sse`.

use crate::catalog::DownloadProgress;
use tokio::sync::broadcast;

/// Maximum number of events that a slow reader may lag behind. Beyond that it gets the current
/// statuses instead of the lost events.
const BACKLOG: usize = 256;

/// An event about a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelEvent {
    /// The model's name, or `*` for all models.
    pub(crate) model: String,
    pub(crate) change: ModelChange,
}

/// The change that an event reports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ModelChange {
    /// Its status has changed.
    Status {
        /// unloaded, loading, loaded, unloading or failed.
        state: &'static str,
        /// The error of a failed load.
        problem: Option<String>,
    },
    /// It was removed from the list of models.
    Removed,
    /// The list of models was read again.
    Reloaded,
    Downloading(DownloadProgress),
    Downloaded,
    DownloadFailed(String),
    /// The server is shutting down.
    Draining,
}

/// Broadcasts events to all subscribers.
#[derive(Clone, Debug)]
pub(crate) struct ModelEvents(broadcast::Sender<ModelEvent>);

impl Default for ModelEvents {
    fn default() -> ModelEvents {
        ModelEvents(broadcast::Sender::new(BACKLOG))
    }
}

impl ModelEvents {
    /// Receives the events from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<ModelEvent> {
        self.0.subscribe()
    }

    pub(crate) fn send(&self, model: &str, change: ModelChange) {
        // An error means that no client has subscribed.
        let _ = self.0.send(ModelEvent { model: model.to_owned(), change });
    }
}
