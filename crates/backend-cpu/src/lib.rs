//! The CPU backend: plans compiled to instructions, which a thread pool runs phase by phase over one arena and packed weights.
//!
//! Public is what a program needs to make the backend and to write packed files. What runs a step is behind the traits of `latent-backend`, which
//! the engine calls after it has checked tokens, rows and sequences:
//!
//! ```
//! use latent_backend::Backend;
//! use latent_backend_cpu::CpuBackend;
//! assert_eq!(CpuBackend::new().name(), "cpu");
//! ```
//!
//! ```compile_fail
//! use latent_backend_cpu::CpuModel;
//! ```

mod attention;
mod backend;
mod bandwidth;
mod compile;
mod elementwise;
mod expanded;
mod experts;
mod kv_memory;
mod kv_store;
mod linear;
mod loader;
mod mla_projection;
mod model;
mod pack;
mod packing;
mod read_ahead;
mod run;
mod scratch;
#[cfg(test)]
mod tests;
mod trace;
mod weight_arena;
mod weights;

pub use backend::CpuBackend;
pub use bandwidth::read_bandwidth;
pub use packing::{Packed, pack};
