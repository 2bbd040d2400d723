//! The GPU backend: runs plans with WGSL shaders through wgpu, on Vulkan, Metal and DX12.
//!
//! The device:
//! * `adapters`: enumeration of adapters.
//! * `device`: an open device with checked calls. `features`: the optional features that it
//!   requests.
//! * `buffers`: device memory.
//! * `shader`, `pipeline`: shaders, compiled once. `checks`: their run-time checks.
//! * `commands`, `timestamps`: lists of shader calls that are submitted together, and their timing.
//!   `call_cache`, `shader_binding`: bind groups that steps repeat, and the buffers in them.
//! * `variants`: the optional device features that product kernels use.
//! * `matmul`: products with weights in the formats of their files. `cases` (a feature): the table
//!   of kernel cases on a device.
//! * `coop_matrix`: a kind of cooperative matrices. `matrix_trial`: a check that the device
//!   multiplies them correctly. `f16_values`: conversion of f16 to f32.
//! * `error`: the errors.
//!
//! Products without a model:
//! * `w4_device`: 4-bit weights and rows that stay in device memory.
//!
//! A model on the device:
//! * `backend`, `model`: the traits of `latent-backend`.
//! * `weights`: upload of weights.
//! * `values`, `memory`: the buffers of a plan's values. `needs`: their sizes.
//! * `cache`, `kv_store`: the KV cache.
//! * `compile`, `ops`, `program`: compilation of operations to shader calls. Each operation has a
//!   file and its shaders.
//! * `step_data`, `run`: the data of a step for the shaders. `state_runs`: the data of spans with a
//!   recurrent state. `portions`: the size of submissions.
//! * `largest`: the largest logits of a row, if the sampler needs no others.
//! * `observe`, `limits`: timing, tracing and listing of calls; the device's peak rates.
//! * `kernel_facts`, `bank_conflicts`: workgroup sizes and memory accesses, read from shader texts.
//!   `executables`: statistics of a driver's compiler.
//!
//! ```
//! for (number, adapter) in latent_backend_wgpu::adapters().iter().enumerate() {
//!     assert!(!adapter.name.is_empty(), "gpu:{number} has no name");
//! }
//! ```
#![deny(unsafe_code)]

mod adapters;
mod backend;
#[cfg(not(target_family = "wasm"))]
mod bank_conflicts;
mod buffers;
mod cache;
mod call_cache;
#[cfg(any(test, feature = "cases"))]
mod cases;
mod checks;
mod commands;
mod compile;
mod coop_matrix;
mod device;
mod driver_messages;
mod error;
#[cfg(any(windows, target_os = "linux"))]
mod executables;
mod f16_values;
mod features;
mod kernel_facts;
mod kv_store;
mod largest;
mod limits;
mod matmul;
mod matrix_trial;
mod memory;
mod model;
mod needs;
mod observe;
mod ops;
mod pipeline;
mod portions;
mod program;
mod ready;
mod run;
mod shader;
mod shader_binding;
mod state_runs;
mod step_data;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod timestamps;
mod values;
mod variants;
mod w4_device;
mod weights;

pub use adapters::{AdapterDescription, AdapterKind, adapters};
pub use backend::GpuBackend;
#[cfg(any(test, feature = "cases"))]
pub use cases::GpuCaseBackend;
pub use coop_matrix::CoopMatrix;
pub use error::GpuError;
pub use matmul::w4::{GroupScales, W4CodeKind, W4Operand, W4WeightShape};
pub use variants::{KernelVariant, KernelVariants};
pub use w4_device::{W4Device, W4DeviceKernel, W4Elements, W4Resident, W4Rows};
