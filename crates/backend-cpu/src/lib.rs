//! The CPU backend. It compiles plans to instructions, and a thread pool runs them phase by phase
//! over one arena and packed weights.
//!
//! Only the backend, the writer of packed files and the bandwidth probe are public. Steps run
//! behind the traits of `latent-backend`. The engine checks tokens, rows and sequences before it
//! calls them:
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
//!
//! Each file uses only those before it: `program` (data) ← `compile` (plan → program); `disjoint`
//! (shared buffers) ← `context` (a worker's view of a step) ← `ops` (one file per operation) ←
//! `interpret` (runs a program) ← `model` ← `backend`.

mod backend;
mod bandwidth;
mod compile;
mod context;
mod disjoint;
mod expert_rows;
mod gathered_rows;
mod input_products;
mod input_recorder;
mod interpret;
mod kv_memory;
mod kv_store;
mod loader;
mod model;
mod ops;
mod pack;
mod packing;
mod program;
mod read_ahead;
mod scratch;
mod source_pages;
#[cfg(test)]
mod tests;
mod timeline;
mod trace;
mod weight_arena;
mod weights;

pub use backend::CpuBackend;
pub use bandwidth::read_bandwidth;
pub use packing::{PackedFile, pack};
