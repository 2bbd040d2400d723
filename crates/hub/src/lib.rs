//! Models from the Hugging Face Hub: references, resumable and verified downloads, and the cache
//! folder.
//!
//! * [`ModelRef`]: a reference, `hf:OWNER/NAME[@REVISION][:QUANT]`. [`short_names()`] are aliases
//!   of references.
//! * [`HubSettings`]: the hub's address, the token and the cache folder, from the environment.
//! * [`find()`] looks for a model on this machine, [`pull()`] downloads one; [`list()`] and
//!   [`remove()`] manage the cache folder.
//! * [`HubError`]: errors, each with advice.
//!
//! ```
//! use latent_hub::{ModelSelector, ModelRef};
//! let model: ModelRef = "hf:bartowski/DeepSeek-V2-Lite-Chat-GGUF:q4_k_m".parse()?;
//! assert_eq!(model.repo.owner, "bartowski");
//! assert_eq!(model.choice, ModelSelector::Quant("q4_k_m".into()));
//! assert_eq!(model.revision(), "main");
//! # Ok::<(), latent_hub::HubError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod address;
mod answer;
mod api;
mod client;
mod digest;
mod download;
mod error;
mod list;
mod listing;
mod local;
mod lock;
mod part;
mod path;
mod paths;
mod pull;
mod quant;
mod reference;
mod remove;
mod repo;
mod select;
mod settings;
mod short_names;
mod store;

pub use client::tls;
pub use error::{HubError, ModelChoice};
pub use list::{ListedModel, list};
pub use local::{LocalModel, find};
pub use path::{find_or_pull, misspelled_name, path_reference, path_short_name};
pub use pull::{PullEvent, PullResult, pull, pull_with};
pub use quant::{DEFAULT_QUANTS, base_name, set_name};
pub use reference::{ModelRef, ModelSelector, PREFIX};
pub use remove::{RemovalReport, pulled_reference, remove};
pub use repo::Repo;
pub use select::QuantPolicy;
pub use settings::{ENDPOINT, HubSettings, MIN_SPEED, Token};
pub use short_names::{ShortName, likely_short_name, model_ref, short_name, short_names};
