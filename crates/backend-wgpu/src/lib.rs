//! The GPU backend: plans run by WGSL shaders through wgpu, on Vulkan, Metal and DX12.
//!
//! The device:
//! * `adapters`: which devices there are.
//! * `device`: one that was opened; every call to it is checked. `features`: what is asked of it, where it is offered.
//! * `buffers`: its memory.
//! * `shader`, `pipeline`: shaders, compiled once. `checks`: what they check as they run.
//! * `commands`, `timestamps`: lists of calls, which the device gets at once, and its clock. `call_cache`,
//!   `shader_binding`: bind groups that steps repeat, and what calls are bound to.
//! * `variants`: what kernels of products use beyond what every device has.
//! * `matmul`: products with weights in the formats of their files; `cases` (a feature): the table of kernel cases on a device.
//! * `coop_matrix`: a kind of cooperative matrices. `matrix_trial`: whether the device multiplies them right. `f16_values`: how f16 becomes f32.
//! * `error`: the errors.
//!
//! Products without a model:
//! * `w4_device`: 4-bit weights and rows that stay in its memory.
//!
//! A model on it:
//! * `backend`, `model`: the traits of `latent-backend`.
//! * `weights`: decoded and sent.
//! * `values`, `memory`: where the values of a plan are; `needs`: how much they take.
//! * `cache`, `kv_store`: the KV cache.
//! * `compile`, `ops`, `program`: operations become calls. Each operation has a file and its
//!   shaders.
//! * `step_data`, `run`: the data of a step for the shaders; `state_runs`: of spans with a recurrent state. `portions`: the size of submissions.
//! * `largest`: the largest logits of a row, where these are enough.
//! * `observe`, `limits`: timing, recording and listing of calls; what the device can do at best.
//! * `kernel_facts`, `bank_conflicts`: what texts of shaders say of their workgroups, and of accesses to their memory; `executables`: what a driver makes of them.
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
