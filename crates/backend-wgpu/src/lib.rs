//! The GPU backend: plans run by WGSL shaders through wgpu, on Vulkan, Metal and DX12.
//!
//! * `adapters`: which devices there are.
//! * `device`: one that was opened; every call to it is checked.
//! * `buffers`: its memory.
//! * `pipeline`: shaders, compiled once.
//! * `commands`: lists of calls, which the device gets in one piece.
//! * `matmul`: products with weights in the formats of their files.
//! * `error`: what can go wrong.
//!
//! ```
//! for (number, adapter) in latent_backend_wgpu::adapters().iter().enumerate() {
//!     assert!(!adapter.name.is_empty(), "gpu:{number} has no name");
//! }
//! ```
#![forbid(unsafe_code)]

mod adapters;
mod buffers;
mod commands;
mod device;
mod error;
mod matmul;
mod pipeline;
mod ready;
#[cfg(test)]
mod testing;

pub use adapters::{AdapterDescription, AdapterKind, adapters};
pub use error::GpuError;
