//! Types shared by all crates of Latent. Data only: no arithmetic, no I/O, no threads.
//!
//! * [`TensorType`]: every element format that a GGUF file can name, with its block size and bytes.
//! * [`KernelContract`]: what a kernel takes and promises, for kernel selection.
//! * [`Arithmetic`]: what kernels multiply and add in.
//! * [`printable()`]: names from files and paths, safe to show.
//! * [`panic_text()`]: the message of a panic that was caught.
//! * [`Setting`]: a setting that an error names, whatever a program calls it.
//! * [`ValueType`]: the element type of a value of the plan.
//! * [`Tier`] and [`CpuFeatures`]: the ISA levels that kernels come in.
//!
//! ```
//! use latent_types::TensorType;
//! // A row of 512 elements in Q4_K is two blocks of 144 bytes.
//! assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
//! // A row that does not fill its last block has no size.
//! assert_eq!(TensorType::Q4_K.row_bytes(500), None);
//! ```
#![forbid(unsafe_code)]

mod arithmetic;
mod bytes;
mod kernel;
mod panic_text;
mod printable;
mod setting;
mod tensor_type;
mod tier;
mod value_type;

pub use arithmetic::Arithmetic;
pub use bytes::format_bytes;
pub use kernel::{ActivationType, CACHE_BLOCK, CacheRow, CacheType, KernelContract, OpKind, WeightLayout};
pub use panic_text::panic_text;
pub use printable::{printable, printable_lines, printable_stream};
pub use setting::{Setting, SettingValue};
pub use tensor_type::{TensorType, UnknownTensorType};
pub use tier::{CpuFeatures, Tier, UnknownTier};
pub use value_type::ValueType;
