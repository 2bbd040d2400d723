//! Models for many users at once, through the interfaces that their tools already speak.
//!
//! * [`Server`]: HTTP on one thread, the engine on another. [`Server::start`] listens and loads; [`Server::stop`] drains.
//! * [`ServerConfig`], [`Limits`], [`ApiKeys`]: how it is set up. What a client may ask for has limits with names and defaults.
//! * [`ModelSource`], [`Loader`], [`LoadedModel`]: what is served. One model is loaded at once, several when they are asked for; the loader is
//!   kept, and called again after the model was unloaded, and after a fault of the engine.
//! * [`ModelCatalog`]: where the models come from, if the list can change while the server runs.
//! * [`RequestCheck`]: what the server makes of requests, without an engine.
//! * [`openapi_document`]: the interface as an OpenAPI document.
//!
//! Inside, from below: `items` is the one model of a conversation, `worker` owns an engine, `models` has one for each model that is loaded, `answer` turns its events into pieces for all
//! interfaces, `app` is what every request sees, `dialects` reads every interface into items and writes answers out of pieces, and `http` is
//! everything between a socket and a dialect.
//!
//! ```no_run
//! use latent_server::{Extras, LoadError, LoadedModel, ModelSettings, ModelSource, Server, ServerConfig};
//! # fn load() -> Result<LoadedModel, LoadError> { unimplemented!() }
//! let model = ModelSource {
//!     name: "demo".into(),
//!     aliases: Vec::new(),
//!     tags: Vec::new(),
//!     path: "demo.gguf".into(),
//!     bytes: 0,
//!     loader: Box::new(|_attempt| load()),
//!     drawing: None,
//!     definition: String::new(),
//!     settings: ModelSettings::default(),
//! };
//! let server = Server::start(ServerConfig::default(), vec![model], Extras::default())?;
//! let url = server.url();
//! server.join();
//! # Ok::<(), latent_server::ServeError>(())
//! ```
#![forbid(unsafe_code)]

mod adapters;
mod answer;
mod app;
mod catalog;
mod config;
mod dialect;
mod dialects;
mod document;
mod duration;
mod error;
mod flags;
mod http;
mod ids;
mod items;
mod json;
mod keys;
mod limits;
mod memory;
mod metrics;
mod model;
mod models;
mod openapi;
mod pace;
mod params;
mod reasoning;
mod spans;
mod store;
mod stream;
mod template_caps;
mod worker;

pub use app::Extras;
pub use catalog::{DownloadProgress, ModelCatalog};
pub use config::{DEFAULT_DISK_BYTES, Fallback, ServerConfig};
pub use duration::parse_duration;
pub use flags::flag_of;
pub use http::{CheckError, CheckedRequest, RequestCheck, ServeError, Server, TlsError, openapi_document};
pub use keys::{ApiKeys, KeyError};
pub use limits::Limits;
pub use model::{
    DrawingSource, LoadAttempt, LoadError, LoadedModel, Loader, ModelFacts, ModelFigures, ModelSettings,
    ModelSource, RequestDefaults,
};
pub use reasoning::ReasoningLimit;
pub use spans::{Otlp, OtlpError};
pub use worker::{StepHook, TakenJob};
