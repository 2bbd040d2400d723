//! GPTQ (Frantar et al., 2022): rounds the columns of a weight in order, and adjusts the targets of
//! later columns by the errors of earlier ones.
//!
//! With H = Σ x·xᵀ over the inputs x of a weight, a row w that becomes q adds (w − q)·H·(w − q) to
//! the squared error of its output. With H = R·Rᵀ and R upper triangular this is the sum over
//! columns i of R\[i,i\]² · (t\[i\] − q\[i\])², where the target is t\[i\] = w\[i\] + Σ over
//! earlier k of (w\[k\] − q\[k\]) · R\[k,i\] / R\[i,i\]. So each column is rounded to the level
//! nearest to its target. The scales of a group of columns are those with the lowest error after
//! rounding its columns in this way.
//!
//! * [`HessianFactor`]: R of a damped Hessian, and the order of columns.
//! * [`GptqFormat`]: a block format's rounding function; [`has_gptq`]: whether a type has one.
//! * [`round_levels`]: rounds a row to codes and scales that the caller stores.
//!
//! As in [`crate::quantizers`], functions are inlined into their callers, which compile them for
//! their ISA, and every ISA gives the same bits.

mod columns;
mod factor;
mod format;
mod group;
mod rows;

pub use columns::{LevelGroup, StoredLevels, round_levels};
pub use factor::{DEFAULT_DAMPING, GptqError, GptqOptions, HessianFactor, triangle_len};
pub use format::{
    GptqFormat, check_rows, gptq_types, group_len, has_gptq, mxfp4, nvfp4, q4_0, q4_k, quantize_rows,
};
pub use rows::GptqRows;
