//! The CPU backend, the latent cache, sampling, and the one prompt → text loop.
//!
//! * [`Engine`]: a loaded model: steps over [`Sequence`](cache::Sequence)s, logits out.
//! * [`cache`]: pages of latent rows: shared prefixes, copy on write, truncation, context shift, files.
//! * [`cpu`]: plans compiled and run by a [`thread pool`] of threads.
//! * [`sampling`]: from logits to the next token; [`Engine::generate`]: from a prompt to text.
//! * [`Engine::profile`]: where the time goes, beside the machine's [`Limits`].
//! * [`pack`]: a model written to a packed file, which [`Engine::load`] maps and uses in place.
//! * [`Engine::trace`]: the values that a run passes through; [`diff`]: where two runs part.
//! * [`memory`]: what a session needs and what there is.

mod bandwidth;
pub mod cache;
pub mod compare;
mod context_shift;
pub mod cpu;
mod engine;
mod error;
mod generate;
pub mod memory;
mod packing;
mod profile;
mod read_ahead;
pub mod sampling;
mod trace;

pub use bandwidth::read_bandwidth;
pub use context_shift::ContextShift;
pub use engine::{DEFAULT_BATCH_TOKENS, Engine, EngineOptions, LogitsRequest, SeqInput, Summary};
pub use error::EngineError;
pub use generate::{Answer, Event, Listener, Request, Session, StopReason};
pub use packing::{Packed, pack};
pub use profile::{Limits, PhaseProfile, Roofline, StepProfile, StepSize};
pub use trace::{Trace, Values};
