//! Server state that every request sees, and reading of requests.

mod asker;
mod body;
mod coding;
mod early;
mod ignored;
mod name;
mod query;
mod resumable;

pub(crate) use asker::{ReceivedBody, RequestContext};
pub(crate) use coding::ContentCodings;
pub(crate) use ignored::{HEADER as IGNORED_FIELDS_HEADER, IgnoredFields, LoggedFields};
pub(crate) use name::RouteName;
pub(crate) use query::{parameter, percent_decoded};
pub(crate) use resumable::{MAX_NAME as MAX_CONVERSATION, StreamSessions};

use crate::catalog::ModelCatalog;
use crate::config::ServerConfig;
use crate::memory::RequestMemory;
use crate::metrics::Metrics;
use crate::model::ModelSource;
use crate::models::Models;
use crate::spans::Spans;
use crate::store::ResponseStore;
use crate::worker::StepHook;
use std::sync::{Arc, Mutex};

/// Optional parts of a server that a program provides.
#[derive(Clone, Default)]
pub struct Extras {
    /// Called before each step, for tests of engine faults.
    pub before_step: Option<StepHook>,
    /// The source of models, if the list can change.
    pub catalog: Option<Arc<dyn ModelCatalog>>,
}

/// Server state that every request sees.
pub(crate) struct App {
    pub(crate) config: ServerConfig,
    pub(crate) models: Arc<Models>,
    pub(crate) metrics: Metrics,
    pub(crate) memory: Arc<RequestMemory>,
    pub(crate) store: Mutex<ResponseStore>,
    pub(crate) spans: Spans,
    /// Streams that outlive their connection.
    pub(crate) streams: Arc<StreamSessions>,
    pub(crate) logged_fields: LoggedFields,
}

impl App {
    pub(crate) fn new(config: ServerConfig, sources: Vec<ModelSource>, extras: Extras, spans: Spans) -> App {
        let models = Models::new(sources, &config, extras.catalog, extras.before_step);
        App::with(config, models, spans)
    }

    pub(crate) fn with(config: ServerConfig, models: Models, spans: Spans) -> App {
        let store = Mutex::new(ResponseStore::new(config.limits.store_bytes));
        let models = Arc::new(models);
        let memory = RequestMemory::new(config.limits.bodies_bytes);
        let streams = StreamSessions::new(config.limits.stream_bytes);
        App {
            streams,
            config,
            models,
            metrics: Metrics::new(Arc::clone(&memory)),
            memory,
            store,
            spans,
            logged_fields: LoggedFields::default(),
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // Without a close command the engine threads would wait for commands forever.
        self.models.drain();
    }
}
