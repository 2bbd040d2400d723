//! Models from Hugging Face's hub: what a reference names, downloads that can be broken off and are checked, and the cache folder.
//!
//! * [`ModelRef`], `hf:OWNER/NAME[@REVISION][:QUANT]`.
//! * [`Settings`], where the hub and the cache folder are, and who asks; from the environment.
//! * [`find()`] looks for a model on this machine, [`pull()`] brings one; [`list()`] and [`remove()`], what is here, and away with it.
//! * [`HubError`], why not, and what to do.
//!
//! ```
//! use latent_hub::{Choice, ModelRef};
//! let model: ModelRef = "hf:bartowski/DeepSeek-V2-Lite-Chat-GGUF:q4_k_m".parse()?;
//! assert_eq!(model.repo.owner, "bartowski");
//! assert_eq!(model.choice, Choice::Quant("q4_k_m".into()));
//! assert_eq!(model.revision(), "main");
//! # Ok::<(), latent_hub::HubError>(())
//! ```
#![forbid(unsafe_code)]

mod address;
mod answer;
mod api;
mod client;
mod deadline;
mod digest;
mod download;
mod error;
mod list;
mod listing;
mod local;
mod lock;
mod part;
mod paths;
mod pull;
mod quant;
mod reference;
mod remove;
mod repo;
mod select;
mod settings;
mod store;
mod tls;

pub use error::{HubError, ModelChoice};
pub use list::{Listed, list};
pub use local::{LocalModel, find};
pub use pull::{PullEvent, Pulled, pull};
pub use quant::{DEFAULT_QUANTS, base_name, set_name};
pub use reference::{Choice, ModelRef, PREFIX};
pub use remove::{Removed, pulled_reference, remove};
pub use repo::Repo;
pub use settings::{ENDPOINT, MIN_SPEED, Settings, Token};
pub use tls::tls;
