//! The in-memory store of responses, for `previous_response_id`.

use crate::items::ConversationItem;
use bytes::Bytes;
use latent_engine::scheduler::FairnessKey;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A response that later requests can continue.
pub(crate) struct StoredResponse {
    /// The conversation: input items, then output items.
    pub(crate) items: Arc<[ConversationItem]>,
    /// The number of input items.
    pub(crate) input: usize,
    /// The response as JSON text.
    pub(crate) text: Bytes,
    owner: FairnessKey,
    pub(crate) bytes: usize,
}

/// Stored responses of all tenants. The oldest are evicted when the budget is exceeded.
pub(crate) struct ResponseStore {
    responses: HashMap<String, StoredResponse>,
    /// IDs from the oldest to the newest.
    order: VecDeque<String>,
    bytes: usize,
    budget: usize,
}

/// Estimated bytes of an item in addition to its texts.
const ITEM: usize = 128;

fn bytes_of(items: &[ConversationItem], text: &Bytes) -> usize {
    let of = |item: &ConversationItem| {
        ITEM + match item {
            ConversationItem::Message { text, .. } => text.bytes(),
            ConversationItem::Reasoning(text) => text.len(),
            ConversationItem::ToolCall { id, name, arguments } => id.len() + name.len() + arguments.len(),
            ConversationItem::ToolResult { id, text, .. } => id.len() + text.bytes(),
        }
    };
    items.iter().map(of).sum::<usize>() + text.len()
}

impl ResponseStore {
    pub(crate) fn new(budget: usize) -> ResponseStore {
        ResponseStore { responses: HashMap::new(), order: VecDeque::new(), bytes: 0, budget }
    }

    pub(crate) fn insert(
        &mut self,
        owner: FairnessKey,
        id: String,
        items: Vec<ConversationItem>,
        input: usize,
        text: Bytes,
    ) {
        let bytes = bytes_of(&items, &text);
        // It would evict everything else and still not fit.
        if bytes > self.budget {
            tracing::info!(
                "a response of {bytes} bytes is not stored: it is larger than the budget (store_bytes)"
            );
            return;
        }
        while self.bytes + bytes > self.budget
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.responses.remove(&oldest).map_or(0, |stored| stored.bytes);
        }
        self.bytes += bytes;
        self.order.push_back(id.clone());
        self.responses.insert(id, StoredResponse { items: items.into(), input, text, owner, bytes });
    }

    pub(crate) fn get(&self, owner: FairnessKey, id: &str) -> Option<&StoredResponse> {
        // The responses of other API keys look like missing ones.
        self.responses.get(id).filter(|stored| stored.owner == owner)
    }

    pub(crate) fn remove(&mut self, owner: FairnessKey, id: &str) -> bool {
        if self.get(owner, id).is_none() {
            return false;
        }
        self.order.retain(|other| other != id);
        self.bytes -= self.responses.remove(id).map_or(0, |stored| stored.bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_evicted_and_owners_are_isolated() {
        let mut store = ResponseStore::new(1000);
        let items = || vec![ConversationItem::Reasoning("x".repeat(150))];
        let one = FairnessKey(1);
        for name in ["a", "b", "c", "d"] {
            store.insert(one, name.into(), items(), 1, Bytes::new());
        }
        assert!(store.get(one, "a").is_none() && store.get(one, "d").is_some());
        assert!(store.get(FairnessKey(2), "d").is_none());
        assert!(!store.remove(FairnessKey(2), "d") && store.remove(one, "d"));
        // A response beyond the limit is not stored, and evicts no others.
        store.insert(
            one,
            "large".into(),
            vec![ConversationItem::Reasoning("x".repeat(2000))],
            1,
            Bytes::new(),
        );
        assert!(store.get(one, "large").is_none() && store.get(one, "c").is_some());
        assert!(
            store.remove(one, "b") && store.remove(one, "c") && store.bytes == 0 && store.order.is_empty()
        );
    }
}
