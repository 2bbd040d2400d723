//! GPTQ: rounding the columns of a weight one after another, where the errors of earlier columns move the targets of later ones.
//!
//! With H = Σ x·xᵀ over the inputs x of a weight, a row w that becomes q adds (w − q)·H·(w − q) to the squared error of its output. With H = R·Rᵀ and R upper
//! triangular this is the sum over columns i of R\[i,i\]² · (t\[i\] − q\[i\])², where the target is t\[i\] = w\[i\] + Σ over earlier k of (w\[k\] − q\[k\]) · R\[k,i\] / R\[i,i\].
//! So each column is rounded to the level nearest to its target. The scales of a group of columns are those that leave the lowest error after its columns have
//! been rounded this way.
//!
//! * [`HessianFactor`]: R of a damped Hessian, and the order of columns.
//! * [`GptqFormat`]: the block formats; [`has_gptq`]: for which types there is one.
//! * [`round_levels`]: rounds a row to codes and scales that the caller stores.
//!
//! As in [`crate::quantizers`], functions are inlined into their callers, to be compiled for their ISA, and every ISA gives the same bits.

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
