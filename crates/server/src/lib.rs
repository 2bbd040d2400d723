//! A loaded model for many users at once, through the interfaces that their tools already speak.
//!
//! * [`Server`]: HTTP on one thread, the engine on another. [`Server::start`] listens and loads; [`Server::stop`] drains.
//! * [`ServerConfig`], [`FileConfig`], [`Limits`], [`Keys`]: how it is set up. What a client may ask for has limits with names and defaults.
//! * [`LoadedModel`], [`Loader`]: what is served; the loader is kept, and called again after a fault of the engine.
//! * [`openapi_document`]: the interface as an OpenAPI document.
//!
//! Inside, from below: `items` is the one model of a conversation, `worker` owns the engine, `answer` turns its events into pieces for all
//! interfaces, `app` is what every request sees, `dialects` reads every interface into items and writes answers out of pieces, and `http` is
//! everything between a socket and a dialect.
//!
//! ```no_run
//! use latent_server::{Extras, LoadedModel, Server, ServerConfig};
//! # fn load() -> Result<LoadedModel, Box<dyn std::error::Error + Send + Sync>> { unimplemented!() }
//! let server = Server::start(ServerConfig::default(), Box::new(|_progress| load()), Extras::default())?;
//! let url = server.url();
//! server.join();
//! # Ok::<(), latent_server::ServeError>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod app;
mod config;
mod dialect;
mod dialects;
mod error;
mod http;
mod ids;
mod items;
mod json;
mod keys;
mod limits;
mod metrics;
mod model;
mod openapi;
mod pace;
mod params;
mod store;
mod stream;
mod worker;

pub use app::{Drawing, Extras};
pub use config::{ConfigError, DEFAULT_DISK_BYTES, FileConfig, ServerConfig};
pub use http::{ServeError, Server, TlsError, openapi_document};
pub use keys::{KeyError, Keys};
pub use limits::Limits;
pub use model::{AboutModel, LoadedModel, Loader};
pub use worker::Hook;
