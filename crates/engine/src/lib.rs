//! The CPU backend, the latent cache, sampling, and the one prompt → text loop.
//!
//! * [`Engine`]: a loaded model: steps over [`Sequence`](cache::Sequence)s, logits out.
//! * [`cache`]: pages of latent rows: shared prefixes, copy on write, truncation, context shift, files.
//! * [`cpu`]: plans compiled and run by a [`team`] of threads.
//! * [`memory`]: what a session needs and what there is.

pub mod cache;
pub mod cpu;
mod engine;
mod error;
pub mod memory;
pub mod team;

pub use engine::{DEFAULT_LARGEST, Engine, EngineOptions, Item, Summary, Wanted, default_threads};
pub use error::EngineError;
