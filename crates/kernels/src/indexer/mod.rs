//! The lightning indexer of sparse attention: scores of cached keys, and the positions of the
//! largest.

mod args;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scores;
mod select;

pub use args::IndexArgs;
pub use scores::{index_arithmetic, index_scores};
pub use select::select_largest;
