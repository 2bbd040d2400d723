//! KV cache events for Dynamo's router, which sends a prompt to the worker that has cached most of
//! it.
//!
//! A block is identified by its hash of all tokens up to its end. The event also carries the hash
//! by which the router looks up the block's tokens.

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, compute_block_hash_for_seq,
};
use latent_engine::cache::{BlockHash, CacheSalt, PrefixChange};
use std::collections::HashMap;
use std::sync::Arc;

/// Data-parallel rank of a worker that has one.
const RANK: u32 = 0;

#[derive(Default)]
pub(crate) struct KvEvents {
    publisher: Option<Arc<KvEventPublisher>>,
    namespaces: Namespaces,
}

impl KvEvents {
    pub(crate) fn to(&mut self, publisher: Arc<KvEventPublisher>) {
        self.publisher = Some(publisher);
    }

    /// Notes by which name the router knows jobs of a salt.
    pub(crate) fn enter(&mut self, salt: CacheSalt, namespace: Option<String>) {
        if let Some(name) = namespace {
            self.namespaces.enter(salt, name);
        }
    }

    /// Tells what has come and gone.
    pub(crate) fn tell(&mut self, changes: Vec<PrefixChange>) {
        let Some(publisher) = &self.publisher else { return };
        let events = events(changes, &mut self.namespaces, publisher.kv_block_size());
        let event = |data| KvCacheEvent { event_id: publisher.next_event_id(), data, dp_rank: RANK };
        if publisher.publish_batch(events.into_iter().map(event).collect()).is_err() {
            tracing::warn!("the router hears no more of what is cached");
            self.publisher = None;
        }
    }
}

/// Names of salts that have blocks, or may have soon.
#[derive(Default)]
struct Namespaces(HashMap<CacheSalt, (String, usize)>);

/// Names without blocks that are kept: their jobs may be running.
const IDLE_NAMES: usize = 4096;

impl Namespaces {
    fn enter(&mut self, salt: CacheSalt, name: String) {
        if self.0.len() >= IDLE_NAMES && !self.0.contains_key(&salt) {
            self.0.retain(|_, (_, blocks)| *blocks > 0);
        }
        self.0.entry(salt).or_insert((name, 0));
    }

    /// The name of a salt, none where it is the shared one; an error where the name is lost.
    fn name(&self, salt: CacheSalt) -> Result<Option<&str>, ()> {
        if salt == CacheSalt::SHARED {
            return Ok(None);
        }
        self.0.get(&salt).map(|(name, _)| Some(name.as_str())).ok_or(())
    }

    fn count(&mut self, salt: CacheSalt, change: isize) {
        if let Some((_, blocks)) = self.0.get_mut(&salt) {
            *blocks = blocks.saturating_add_signed(change);
        }
    }
}

/// The changes as the router has them: blocks that follow each other come together.
fn events(
    changes: Vec<PrefixChange>,
    namespaces: &mut Namespaces,
    block_tokens: u32,
) -> Vec<KvCacheEventData> {
    let mut events: Vec<KvCacheEventData> = Vec::new();
    let mut last = None;
    for change in changes {
        match change {
            PrefixChange::Kept { name, parent, tokens, salt } => {
                // of what is not told the router only knows less
                let Ok(namespace) = namespaces.name(salt) else { continue };
                let options = BlockHashOptions { cache_namespace: namespace, ..BlockHashOptions::default() };
                let Some(tokens_hash) = compute_block_hash_for_seq(&tokens, block_tokens, options).pop()
                else {
                    continue;
                };
                namespaces.count(salt, 1);
                let block =
                    KvCacheStoredBlockData { block_hash: external(name), tokens_hash, mm_extra_info: None };
                match events.last_mut() {
                    Some(KvCacheEventData::Stored(stored)) if parent.is_some() && parent == last => {
                        stored.blocks.push(block);
                    }
                    _ => events.push(KvCacheEventData::Stored(KvCacheStoreData {
                        parent_hash: parent.map(external),
                        start_position: None,
                        blocks: vec![block],
                    })),
                }
                last = Some(name);
            }
            PrefixChange::Dropped { name, salt } => {
                namespaces.count(salt, -1);
                match events.last_mut() {
                    Some(KvCacheEventData::Removed(removed)) => removed.block_hashes.push(external(name)),
                    _ => events.push(KvCacheEventData::Removed(KvCacheRemoveData {
                        block_hashes: vec![external(name)],
                    })),
                }
                last = None;
            }
        }
    }
    events
}

/// The router's names have 64 bits.
fn external(name: BlockHash) -> ExternalSequenceBlockHash {
    let BlockHash(bytes) = name;
    let mut half = [0; 8];
    half.copy_from_slice(&bytes[..8]);
    ExternalSequenceBlockHash(u64::from_le_bytes(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: u32 = 64;

    fn name(byte: u8) -> BlockHash {
        BlockHash([byte; 16])
    }

    fn kept(byte: u8, parent: Option<u8>, salt: CacheSalt) -> PrefixChange {
        let tokens = (0..TOKENS).map(|token| token + u32::from(byte)).collect();
        PrefixChange::Kept { name: name(byte), parent: parent.map(name), tokens, salt }
    }

    #[test]
    fn blocks_that_follow_each_other_come_together_under_the_hashes_that_the_router_looks_for() {
        let shared = CacheSalt::SHARED;
        let changes = vec![
            kept(1, None, shared),
            kept(2, Some(1), shared),
            kept(3, Some(1), shared),
            PrefixChange::Dropped { name: name(2), salt: shared },
            PrefixChange::Dropped { name: name(3), salt: shared },
            kept(4, None, shared),
        ];
        let events = events(changes, &mut Namespaces::default(), TOKENS);
        let stored = |event: &KvCacheEventData| match event {
            KvCacheEventData::Stored(stored) => (stored.parent_hash, stored.blocks.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(events.len(), 4);
        let (parent, blocks) = stored(&events[0]);
        assert_eq!((parent, blocks.len()), (None, 2));
        let prompt: Vec<u32> = (1..=TOKENS).chain(2..TOKENS + 2).collect();
        let looked_for = compute_block_hash_for_seq(&prompt, TOKENS, BlockHashOptions::default());
        assert_eq!(blocks.iter().map(|block| block.tokens_hash).collect::<Vec<_>>(), looked_for);
        assert_eq!(stored(&events[1]).0, Some(external(name(1))));
        let KvCacheEventData::Removed(removed) = &events[2] else { panic!("{:?}", events[2]) };
        assert_eq!(removed.block_hashes, [external(name(2)), external(name(3))]);
        assert_eq!(stored(&events[3]).0, None);
    }

    #[test]
    fn blocks_of_a_namespace_are_told_under_it_and_those_of_a_lost_name_are_not() {
        let mut namespaces = Namespaces::default();
        let (alice, bob) = (CacheSalt::of(b"alice"), CacheSalt::of(b"bob"));
        namespaces.enter(alice, "alice".into());
        let told = events(vec![kept(1, None, alice), kept(2, None, bob)], &mut namespaces, TOKENS);
        let [KvCacheEventData::Stored(stored)] = &*told else { panic!("{told:?}") };
        let tokens: Vec<u32> = (1..=TOKENS).collect();
        let options = BlockHashOptions { cache_namespace: Some("alice"), ..BlockHashOptions::default() };
        assert_eq!(stored.blocks[0].tokens_hash, compute_block_hash_for_seq(&tokens, TOKENS, options)[0]);
        let shared = compute_block_hash_for_seq(&tokens, TOKENS, BlockHashOptions::default());
        assert_ne!(stored.blocks[0].tokens_hash, shared[0]);
        // a name with blocks stays, however many come
        for index in 0..=IDLE_NAMES {
            namespaces.enter(CacheSalt::of(&index.to_le_bytes()), index.to_string());
        }
        assert_eq!(namespaces.name(alice), Ok(Some("alice")));
        assert!(namespaces.0.len() <= IDLE_NAMES);
    }
}
