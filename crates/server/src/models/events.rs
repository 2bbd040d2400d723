//! Events about the models of a server, for `GET /models/sse`.

use crate::catalog::DownloadProgress;
use tokio::sync::broadcast;

/// Events that a slow reader may be behind. One that is further behind reads the present statuses instead.
const BACKLOG: usize = 256;

/// An event about a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelEvent {
    /// The model's name; `*` for all of them.
    pub(crate) model: String,
    pub(crate) change: ModelChange,
}

/// What an event reports.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ModelChange {
    /// Its status is another one.
    Status {
        /// unloaded, loading, loaded, unloading or failed.
        state: &'static str,
        /// Why it could not be loaded.
        problem: Option<String>,
    },
    /// It is no longer one of the server's models.
    Removed,
    /// The list of models was read again.
    Reloaded,
    /// Bytes of it were downloaded.
    Downloading(DownloadProgress),
    Downloaded,
    /// It could not be downloaded, for this reason.
    DownloadFailed(String),
    /// The server ends.
    Draining,
}

/// Sends events to all that listen.
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
        // without receivers it is dropped
        let _ = self.0.send(ModelEvent { model: model.to_owned(), change });
    }
}
