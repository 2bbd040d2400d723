//! The error of a KV cache without room.

use std::fmt;

/// There is no free block left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFull {
    /// Rows that were to be added.
    pub rows: usize,
    /// Rows that the sequence holds.
    pub cached: usize,
    /// Tokens that the whole cache can hold.
    pub capacity: usize,
}

impl fmt::Display for CacheFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the cache is full: {} cached tokens and {} new ones do not fit into a context of {}",
            self.cached, self.rows, self.capacity
        )
    }
}

impl std::error::Error for CacheFull {}
