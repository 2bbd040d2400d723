//! Compiled grammars.

use crate::limits::GrammarLimits;
use crate::vocabulary::VocabularyTrie;
use crate::workers::MaskWorkers;
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A compiled grammar. Each response that follows it has its own [`Constraint`](crate::Constraint).
pub struct Grammar {
    pub(crate) what: &'static str,
    /// State before the first token. Clones share the lexer's state table.
    pub(crate) start: Matcher,
    /// Mask of the first token, computed when the grammar is compiled.
    pub(crate) first: Arc<SimpleVob>,
    pub(crate) vocabulary: Arc<VocabularyTrie>,
    pub(crate) workers: Arc<MaskWorkers>,
    pub(crate) limits: GrammarLimits,
    pub(crate) bytes: usize,
    /// Set once a response failed. The lexer's state table, which all responses share, may have
    /// reached its limits then, so the cache drops this grammar.
    pub(crate) spoilt: AtomicBool,
}

impl Grammar {
    pub(crate) fn spoil(&self) {
        // Relaxed: the flag guards no data. A late reader only serves the grammar once more.
        self.spoilt.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_spoilt(&self) -> bool {
        self.spoilt.load(Ordering::Relaxed)
    }

    /// Estimated memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
