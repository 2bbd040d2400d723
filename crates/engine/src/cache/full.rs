//! Errors of a full KV cache.

use std::fmt;

/// All blocks are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFull {
    /// Number of rows to add.
    pub rows: usize,
    /// Number of rows of the sequence.
    pub cached: usize,
    /// Number of tokens that the whole cache can hold.
    pub capacity: usize,
}

impl fmt::Display for CacheFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the cache is full: {} cached and {} new tokens do not fit into a context of {} tokens",
            self.cached, self.rows, self.capacity
        )
    }
}

impl std::error::Error for CacheFull {}

/// All slots of recurrent state are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatesFull {
    /// Number of slots of the whole cache.
    pub slots: usize,
}

impl fmt::Display for StatesFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "all {} slots of recurrent state are in use: drop a sequence, or load the model with more slots",
            self.slots
        )
    }
}

impl std::error::Error for StatesFull {}
