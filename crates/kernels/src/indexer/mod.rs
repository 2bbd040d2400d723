//! The lightning indexer of sparse attention: scores of cached keys, and the positions of the largest.

#[cfg(target_arch = "x86_64")]
mod bf16;
mod scores;
mod select;

pub use scores::{IndexArgs, index_scores};
pub use select::select_largest;
