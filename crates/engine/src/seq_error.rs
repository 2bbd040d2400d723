//! Why one sequence of a step cannot run.

use crate::cache::{CacheFull, StatesFull};

/// Why one sequence takes no part in a step, while the others run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SeqError {
    /// No tokens.
    #[error("a sequence without new tokens takes no part in a step")]
    NoTokens,
    /// A token id that the vocabulary does not have.
    #[error("token id {token} at position {position} is out of range: the vocabulary has {vocab} tokens")]
    Token {
        /// The id.
        token: u32,
        /// Where it stands.
        position: usize,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// Logits of a row that there is not.
    #[error("logits of row {row} are wanted, but there are {rows} rows")]
    Wanted {
        /// The row.
        row: usize,
        /// New tokens of the sequence.
        rows: usize,
    },
    /// Another engine has run the sequence.
    #[error("another engine has run this sequence and keeps its cache: use it with that one")]
    Foreign,
    /// The KV cache has no room for it.
    #[error(transparent)]
    CacheFull(#[from] CacheFull),
    /// No slot of recurrent state is free for it.
    #[error(transparent)]
    StatesFull(#[from] StatesFull),
}
