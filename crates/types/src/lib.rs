//! Data types shared by all crates of Latent, without arithmetic, I/O or threads.
//!
//! * [`TensorType`]: all element formats of GGUF files, with block length and bytes.
//! * [`KernelContract`]: inputs and requirements of a kernel, for kernel selection.
//! * [`Arithmetic`]: the number format in which a kernel multiplies and adds.
//! * [`printable()`]: text from files and paths, made safe for terminals.
//! * [`panic_text()`]: the message of a caught panic.
//! * [`Setting`]: a setting in an error, independent of its name in a program.
//! * [`ValueType`]: the element type of a value of the plan.
//! * [`Tier`] and [`CpuFeatures`]: ISA tiers of kernels.
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
