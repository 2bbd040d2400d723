//! The lightning indexer of sparse attention: scores of cached keys, and the positions of the largest.

mod scores;
mod select;

pub use scores::{IndexArgs, index_scores};
pub use select::select_largest;
