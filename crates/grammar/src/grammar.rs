//! A grammar that has been compiled.

use crate::limits::GrammarLimits;
use crate::vocabulary::VocabularyTrie;
use crate::workers::MaskWorkers;
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A compiled grammar. Every answer that follows it has a [`Constraint`](crate::Constraint) of its own.
pub struct Grammar {
    pub(crate) what: &'static str,
    pub(crate) start: Matcher,
    /// The tokens with which an output can begin.
    pub(crate) first: Arc<SimpleVob>,
    pub(crate) vocabulary: Arc<VocabularyTrie>,
    pub(crate) workers: Arc<MaskWorkers>,
    pub(crate) limits: GrammarLimits,
    pub(crate) bytes: usize,
    /// Set once an answer could not follow it to the end: what it shares with others may have grown to its limits.
    pub(crate) spoilt: AtomicBool,
}

impl Grammar {
    pub(crate) fn spoil(&self) {
        self.spoilt.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_spoilt(&self) -> bool {
        self.spoilt.load(Ordering::Relaxed)
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
