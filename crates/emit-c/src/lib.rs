//! Writes a plan as C: a self-contained C11 library that computes one model.
//!
//! [`CLibrary::emit`] plans the model for the target `c` (one operation per node, as the circuit
//! states them) and writes one function per phase. The library needs libm and the model's GGUF
//! file, which it maps. Its loops are in `runtime/` and the same for every model. Generated are
//! `plan.c` and `libmodel.h`.
//!
//! * `request`: the model and its plans, and unsupported files.
//! * `address`: the location of a value in memory, through all views.
//! * `tensors`: the tensors of the file that the plan reads, and its weights as rows of them.
//! * `operations`: the call of each operation and the comment above it.
//! * `plan_c`: the generated files.
//! * `text`: escapes names from files for C comments and strings.
#![forbid(unsafe_code)]

mod address;
mod error;
mod operations;
mod plan_c;
mod request;
mod tensors;
mod text;

pub use error::EmitError;
pub use plan_c::{CFile, CLibrary};
pub use request::{EmitRequest, MAX_EMITTED_ROWS};
