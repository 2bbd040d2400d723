//! The CPU backend: plans compiled to instructions, which a thread pool runs phase by phase over one arena
//! and packed weights.
//!
//! Public are the backend itself and the writer of packed files. Steps run behind the traits of
//! `latent-backend`, which the engine calls after it has checked tokens, rows and sequences:
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
//! How a step comes about, each file using only those before it: `program` (data) ← `compile` (plan →
//! program); `disjoint` (shared buffers) ← `context` (what a worker sees) ← `ops` (one file per operation) ←
//! `interpret` ← `model` ← `backend`.

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
