//! An HTTP server for language models with the APIs of OpenAI, Anthropic, llama.cpp and Ollama.
//!
//! * [`Server`]: HTTP on one thread, each engine on a thread of its own. [`Server::start`] listens
//!   and loads, [`Server::stop`] drains.
//! * [`ServerConfig`], [`Limits`], [`ApiKeys`]: the configuration. Each resource that a client can
//!   use has a named limit with a default.
//! * [`ModelSource`], [`Loader`], [`LoadedModel`]: the models. A single model is loaded at startup,
//!   several on demand. The loader is called again after an idle unload or an engine fault.
//! * [`ModelCatalog`]: a list of models that can change while the server runs.
//! * [`RequestCheck`]: runs requests without an engine, for tests and fuzzing.
//! * [`openapi_document`]: the API as an OpenAPI document.
//!
//! Modules from the bottom up: `items` is the conversation model that all APIs share. `worker` owns
//! an engine. `models` has a worker per loaded model. `answer` turns engine events into updates.
//! `app` is the state that every request sees. `dialects` parses each API into items and encodes
//! updates in the API's format. `http` is everything between a socket and a dialect.
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
