//! A conversation's rows in the KV cache.

use crate::cache::Sequence;

/// A conversation with a model: its cached rows.
#[derive(Debug, Default)]
pub struct Session {
    /// The cached rows.
    pub sequence: Sequence,
}

impl From<Sequence> for Session {
    fn from(sequence: Sequence) -> Session {
        Session { sequence }
    }
}

impl Session {
    /// The tokens that a later prompt may share: see [`Sequence::tokens`].
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }
}
