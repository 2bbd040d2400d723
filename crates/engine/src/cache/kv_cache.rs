//! The KV cache of an engine: the bookkeeping of its blocks over a backend's storage.

use super::block_pool::{BlockPool, Blocks};
use super::full::CacheFull;
use super::sequence::Sequence;
use latent_backend::{BackendError, KV_BLOCK, KvLayout, KvStore, slot};
use std::ops::Range;
use std::sync::Arc;

/// The KV cache of all sequences of an engine. Sequences take blocks of it and give them back when they are dropped.
///
/// A block holds [`KV_BLOCK`] tokens in every layer at once, so that a sequence has one block table whatever the number of layers.
pub struct KvCache {
    pub(super) pool: Arc<BlockPool>,
    pub(super) store: Box<dyn KvStore>,
}

/// Why rows find no place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KvError {
    /// No block is free.
    #[error(transparent)]
    Full(#[from] CacheFull),
    /// The backend's memory failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl KvCache {
    /// Bookkeeping over a backend's storage, which has as many blocks as its layout says.
    pub(crate) fn new(store: Box<dyn KvStore>) -> KvCache {
        let pool = Arc::new(BlockPool::new(store.layout().blocks));
        KvCache { pool, store }
    }

    /// What is stored per token.
    pub fn layout(&self) -> &KvLayout {
        self.store.layout()
    }

    /// The storage, for a step.
    pub(crate) fn store(&mut self) -> &mut dyn KvStore {
        &mut *self.store
    }

    /// Tokens that fit, all sequences together.
    pub fn capacity(&self) -> usize {
        self.pool.count() * KV_BLOCK
    }

    /// Tokens that still fit if they start on new blocks.
    pub fn available(&self) -> usize {
        self.pool.blocks().free() * KV_BLOCK
    }

    /// Bytes that one token takes, in all layers.
    pub fn token_bytes(&self) -> usize {
        self.layout().token_bytes()
    }

    /// The stored row of one layer at a position of a sequence, in the encoding of [`CacheRow`](latent_types::CacheRow).
    ///
    /// # Errors
    /// When the backend's memory fails.
    ///
    /// # Panics
    /// When the sequence has no such position, or belongs to another cache.
    pub fn row(&self, sequence: &Sequence, layer: usize, position: usize) -> Result<Vec<u8>, BackendError> {
        assert!(self.owns(sequence) && position < sequence.len(), "position {position} is not in this cache");
        let mut row = vec![0; self.layout().row(layer).bytes()];
        self.store.read_row(layer, slot(sequence.block_table(), position), &mut row)?;
        Ok(row)
    }

    /// Whether the sequence's blocks are of this cache: also where it has none yet.
    pub(crate) fn owns(&self, sequence: &Sequence) -> bool {
        sequence.owner.as_ref().is_none_or(|owner| Arc::ptr_eq(owner, &self.pool))
    }

    /// Counts rows that were read from a file as cached.
    pub(super) fn advance(&self, sequence: &mut Sequence, rows: usize) {
        sequence.advance(rows);
    }

    /// Takes the blocks of a file that proved damaged back.
    pub(super) fn release(&self, sequence: Sequence) {
        drop(sequence);
    }

    pub(super) fn full(&self, sequence: &Sequence, rows: usize) -> CacheFull {
        CacheFull { rows, cached: sequence.len(), capacity: self.capacity() }
    }

    /// Makes room for `rows` more rows of `sequence`: takes blocks, and copies a half-filled last block that others share.
    ///
    /// # Errors
    /// [`KvError`]; the sequence is as it was.
    ///
    /// # Panics
    /// When the sequence belongs to another pool.
    pub(crate) fn reserve(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), KvError> {
        assert!(self.owns(sequence), "a sequence of another cache");
        let pool = Arc::clone(&self.pool);
        let mut blocks = pool.blocks();
        let (fresh, copy) = wanted(&blocks, sequence, rows);
        if fresh + usize::from(copy.is_some()) > blocks.free() {
            return Err(self.full(sequence, rows).into());
        }
        if copy.is_some() {
            let last = sequence.len() / KV_BLOCK;
            self.own_block(&mut blocks, sequence, last)?;
        }
        sequence.blocks.extend((0..fresh).map_while(|_| blocks.take()));
        sequence.owner.get_or_insert_with(|| Arc::clone(&pool));
        Ok(())
    }

    /// Makes the block at `index` the sequence's own, copying it where others use it too. Callers have checked that a block is free for that.
    fn own_block(
        &mut self,
        blocks: &mut Blocks,
        sequence: &mut Sequence,
        index: usize,
    ) -> Result<(), BackendError> {
        let old = sequence.blocks[index];
        if blocks.users(old) == 1 {
            return Ok(());
        }
        let Some(new) = blocks.take() else { return Ok(()) };
        // a failed copy leaves the sequence as it was
        if let Err(error) = self.store.copy_block(old, new) {
            blocks.give_back(new);
            return Err(error);
        }
        blocks.give_back(old);
        sequence.blocks[index] = new;
        Ok(())
    }

    /// Forgets `forgotten` rows of `sequence`; the rows after them move down by as many positions. Latents have no position, so that
    /// only the rope part of each moved row is rotated, in place, and rounded once more to the cache's type.
    ///
    /// # Errors
    /// [`KvError`] when shared blocks must be copied and no block is free; the sequence is as it was.
    ///
    /// # Panics
    /// When `forgotten` is not within the cached rows, or the sequence belongs to another cache.
    pub(crate) fn shift(&mut self, sequence: &mut Sequence, forgotten: Range<usize>) -> Result<(), KvError> {
        assert!(self.owns(sequence), "a sequence of another cache");
        assert!(
            forgotten.start <= forgotten.end && forgotten.end <= sequence.len(),
            "shift outside the sequence"
        );
        let distance = forgotten.len();
        let len = sequence.len() - distance;
        let written = forgotten.start / KV_BLOCK..len.div_ceil(KV_BLOCK);
        let pool = Arc::clone(&self.pool);
        let mut blocks = pool.blocks();
        let shared = written.clone().filter(|&i| blocks.users(sequence.blocks[i]) > 1).count();
        if shared > blocks.free() {
            return Err(self.full(sequence, 0).into());
        }
        for index in written {
            self.own_block(&mut blocks, sequence, index)?;
        }
        drop(blocks);
        for to in forgotten.start..len {
            let at = |position| slot(sequence.block_table(), position);
            self.store.shift_token(at(to + distance), at(to), -(distance as i64))?;
        }
        sequence.truncate(len);
        Ok(())
    }
}

/// New blocks that `rows` more rows need, and the shared block that must be copied first.
fn wanted(blocks: &Blocks, sequence: &Sequence, rows: usize) -> (usize, Option<u32>) {
    let fresh = (sequence.len() + rows).div_ceil(KV_BLOCK).saturating_sub(sequence.blocks.len());
    (fresh, sequence.next_block().filter(|block| rows > 0 && blocks.users(*block) > 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_graph::ir::{KvLayer, KvLayerKind};
    use latent_testing::reference::HostKvStore;
    use latent_types::CacheType;

    fn cache(tokens: usize) -> KvCache {
        let kv_layer = |layer| KvLayer { kind: KvLayerKind::Latent, layer, width: 6, rope: 2 };
        let layers = vec![kv_layer(0), kv_layer(1)];
        let blocks = tokens.div_ceil(KV_BLOCK) as u32;
        let layout = KvLayout { layers, cache_type: CacheType::F32, blocks };
        KvCache::new(Box::new(HostKvStore::new(layout)))
    }

    fn fill(cache: &mut KvCache, sequence: &mut Sequence, rows: usize, tag: f32) {
        cache.reserve(sequence, rows).unwrap();
        for position in sequence.len()..sequence.len() + rows {
            let elements = (0..6).map(|i| tag + position as f32 + i as f32 / 8.0);
            let row: Vec<u8> = elements.flat_map(f32::to_le_bytes).collect();
            for layer in 0..2 {
                cache.store.write_row(layer, slot(sequence.block_table(), position), &row).unwrap();
            }
        }
        sequence.advance(rows);
    }

    fn first_element(cache: &KvCache, sequence: &Sequence, position: usize) -> f32 {
        let mut row = vec![0; cache.layout().row(1).bytes()];
        cache.store.read_row(1, slot(sequence.block_table(), position), &mut row).unwrap();
        f32::from_le_bytes([row[0], row[1], row[2], row[3]])
    }

    #[test]
    fn a_shared_prefix_is_copied_when_one_side_writes() {
        let mut cache = cache(512);
        let mut a = Sequence::default();
        fill(&mut cache, &mut a, 100, 0.0);
        let mut b = a.share(90);
        assert_eq!((cache.available(), b.len()), (512 - 128, 90));
        fill(&mut cache, &mut b, 20, 1000.0);
        assert_eq!(b.block_table()[0], a.block_table()[0]);
        assert_ne!(b.block_table()[1], a.block_table()[1]);
        assert_eq!(first_element(&cache, &b, 89), 89.0);
        assert_eq!(first_element(&cache, &b, 90), 1090.0);
        assert_eq!(first_element(&cache, &a, 90), 90.0);
        drop(a);
        assert_eq!(first_element(&cache, &b, 5), 5.0);
        drop(b);
        assert_eq!(cache.available(), 512);
    }

    #[test]
    fn a_full_cache_says_so_and_keeps_what_it_has() {
        let mut cache = cache(128);
        let mut a = Sequence::default();
        fill(&mut cache, &mut a, 100, 0.0);
        let KvError::Full(full) = cache.reserve(&mut a, 29).unwrap_err() else { panic!("no block is free") };
        assert_eq!(full, CacheFull { rows: 29, cached: 100, capacity: 128 });
        assert!(
            full.to_string().contains("100 cached tokens and 29 new ones do not fit into a context of 128")
        );
        fill(&mut cache, &mut a, 28, 0.0);
        a.truncate(64);
        assert_eq!((a.len(), a.block_table().len(), cache.available()), (64, 1, 64));
    }

    #[test]
    fn a_dropped_sequence_gives_its_blocks_back() {
        let mut cache = cache(512);
        for _ in 0..20 {
            let mut a = Sequence::default();
            fill(&mut cache, &mut a, 300, 0.0);
            let b = a.share(200);
            // blocks that were reserved for a step that never ended count too
            cache.reserve(&mut a, 100).unwrap();
            assert_eq!(cache.available(), 64);
            drop(a);
            assert_eq!(cache.available(), 256);
            drop(b);
            assert_eq!(cache.available(), 512);
        }
        // sequences may outlive their cache
        let mut a = Sequence::default();
        fill(&mut cache, &mut a, 100, 0.0);
        drop(cache);
        drop(a);
    }

    #[test]
    fn a_cache_knows_its_sequences() {
        let (mut one, mut two) = (cache(128), cache(128));
        let mut a = Sequence::default();
        assert!(one.owns(&a) && two.owns(&a));
        fill(&mut one, &mut a, 70, 0.0);
        assert!(one.owns(&a) && !two.owns(&a) && !two.owns(&a.share(3)));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| two.reserve(&mut a, 1)));
        assert!(caught.is_err());
        assert_eq!((a.len(), two.available()), (70, 128));
    }

    #[test]
    #[should_panic(expected = "65 rows in 1 blocks")]
    fn rows_without_blocks_are_never_cached() {
        let mut a = Sequence::default();
        cache(128).reserve(&mut a, 10).unwrap();
        a.advance(65);
    }
}
