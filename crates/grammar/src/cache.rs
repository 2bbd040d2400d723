//! Cache of compiled grammars. Clients send the same schemas and tools with every request.

use crate::grammar::Grammar;
use std::collections::HashMap;
use std::sync::Arc;

/// Cache with least-recently-used eviction by bytes.
pub(crate) struct GrammarCache {
    entries: HashMap<String, CachedGrammar>,
    bytes: usize,
    limit: usize,
    /// Logical time: incremented by each lookup.
    clock: u64,
}

struct CachedGrammar {
    grammar: Arc<Grammar>,
    bytes: usize,
    used: u64,
}

impl GrammarCache {
    pub(crate) fn new(limit: usize) -> GrammarCache {
        GrammarCache { entries: HashMap::new(), bytes: 0, limit, clock: 0 }
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<Arc<Grammar>> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        // See Grammar::spoilt: compile a fresh one.
        if entry.grammar.is_spoilt() {
            let entry = self.entries.remove(key)?;
            self.bytes -= entry.bytes;
            return None;
        }
        entry.used = self.clock;
        Some(Arc::clone(&entry.grammar))
    }

    pub(crate) fn insert(&mut self, key: String, grammar: &Arc<Grammar>) {
        let bytes = key.len() + grammar.bytes();
        // Otherwise the loop below would evict every other grammar, and still not make enough room.
        if bytes > self.limit {
            return;
        }
        // Two threads may have compiled the same source.
        if let Some(before) = self.entries.remove(&key) {
            self.bytes -= before.bytes;
        }
        while self.bytes + bytes > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            let Some(entry) = oldest.and_then(|key| self.entries.remove(&key)) else { break };
            self.bytes -= entry.bytes;
        }
        self.bytes += bytes;
        self.entries.insert(key, CachedGrammar { grammar: Arc::clone(grammar), bytes, used: self.clock });
    }

    /// Number of grammars, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }
}
