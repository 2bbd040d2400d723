//! The KV cache of an engine: bookkeeping of blocks and recurrent states over a backend's storage.

use super::block_pool::{BlockPool, Blocks};
use super::full::{CacheFull, StatesFull};
use super::recurrent::RecurrentState;
use super::sequence::Sequence;
use super::state_options::StateOptions;
use super::state_pool::{StatePool, StateSlot};
use latent_backend::{BackendError, KV_BLOCK, KvLayout, KvStore, slot};
use std::ops::Range;
use std::sync::Arc;

/// The KV cache of all sequences of an engine. Sequences take its blocks and release them when they
/// are dropped.
///
/// A block holds [`KV_BLOCK`] tokens of every layer with rows, so that a sequence has one block
/// table for all layers. A slot of recurrent state holds one state of every recurrent layer.
pub struct KvCache {
    pub(super) pool: Arc<BlockPool>,
    /// `None` if no layer is recurrent.
    pub(super) states: Option<Arc<StatePool>>,
    pub(super) store: Box<dyn KvStore>,
    /// Number of MTP layers, which are the last layers. Only drafts depend on their rows.
    pub(super) mtp_layers: usize,
}

/// Why rows cannot be reserved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KvError {
    /// No block is free.
    #[error(transparent)]
    Full(#[from] CacheFull),
    /// No slot of recurrent state is free.
    #[error(transparent)]
    States(#[from] StatesFull),
    /// The backend's memory failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl KvCache {
    /// Bookkeeping over a backend's storage. Its layout has the number of blocks and slots; its
    /// last `mtp_layers` layers are MTP layers.
    pub(crate) fn new(store: Box<dyn KvStore>, options: StateOptions, mtp_layers: usize) -> KvCache {
        let layout = store.layout();
        let pool = Arc::new(BlockPool::new(layout.blocks));
        let states = layout.is_recurrent().then(|| Arc::new(StatePool::new(layout.state_slots, options)));
        KvCache { pool, states, store, mtp_layers }
    }

    /// The layout of blocks and states.
    pub fn layout(&self) -> &KvLayout {
        self.store.layout()
    }

    /// The storage, for a step.
    pub(crate) fn store(&mut self) -> &mut dyn KvStore {
        &mut *self.store
    }

    /// Number of tokens that the whole cache can hold.
    pub fn capacity(&self) -> usize {
        self.pool.count() * KV_BLOCK
    }

    /// Number of tokens that the free blocks can hold.
    pub fn available(&self) -> usize {
        self.pool.blocks().free() * KV_BLOCK
    }

    /// Total number of blocks.
    pub fn blocks(&self) -> usize {
        self.pool.count()
    }

    /// Number of unused blocks.
    pub fn free_blocks(&self) -> usize {
        self.pool.blocks().free()
    }

    /// Number of blocks that only the prefix cache uses. They are evicted when blocks run out.
    pub fn idle_blocks(&self) -> usize {
        self.pool.blocks().idle()
    }

    /// The number of new blocks for `rows` more rows of a sequence, and whether one more is needed
    /// to copy a shared block.
    pub(crate) fn wanted_blocks(&self, sequence: &Sequence, rows: usize) -> (usize, bool) {
        let (fresh, copy) = wanted(&self.pool.blocks(), sequence, rows);
        (fresh, copy.is_some())
    }

    /// Size of the rows of one block in all layers, in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        KV_BLOCK * self.token_bytes()
    }

    /// Appends the rows of a block, layer by layer.
    pub(super) fn read_block(&self, block: u32, out: &mut Vec<u8>) -> Result<(), BackendError> {
        let layout = self.layout();
        let mut end = out.len();
        for layer in (0..layout.layers.len()).filter(|layer| layout.layers[*layer].per_token().is_some()) {
            out.resize(end + KV_BLOCK * layout.row(layer).bytes(), 0);
            self.store.read_rows(layer, slot(&[block], 0), &mut out[end..])?;
            end = out.len();
        }
        Ok(())
    }

    /// Writes the rows of a block, in the format of [`read_block`](Self::read_block).
    pub(super) fn write_block(&mut self, block: u32, mut rows: &[u8]) -> Result<(), BackendError> {
        for layer in 0..self.layout().layers.len() {
            if self.layout().layers[layer].per_token().is_none() {
                continue;
            }
            let (of_layer, rest) = rows.split_at(KV_BLOCK * self.layout().row(layer).bytes());
            self.store.write_rows(layer, slot(&[block], 0), of_layer)?;
            rows = rest;
        }
        Ok(())
    }

    /// Appends the states of a slot, layer by layer.
    pub(super) fn read_slot(&self, slot: &StateSlot, out: &mut Vec<u8>) -> Result<(), BackendError> {
        for (layer, shape) in self.layout().recurrent() {
            let end = out.len();
            out.resize(end + shape.bytes(), 0);
            self.store.read_state(layer, slot.index(), &mut out[end..])?;
        }
        Ok(())
    }

    /// Writes states in the format of [`read_slot`](Self::read_slot) to a free slot. `None` if no
    /// slot is free.
    pub(super) fn write_slot(&mut self, mut states: &[u8]) -> Result<Option<Arc<StateSlot>>, BackendError> {
        let Some(slot) = self.states.as_ref().and_then(|pool| pool.take()) else { return Ok(None) };
        let shapes: Vec<_> = self.layout().recurrent().map(|(layer, shape)| (layer, shape.bytes())).collect();
        for (layer, bytes) in shapes {
            let (state, rest) = states.split_at(bytes);
            self.store.write_state(layer, slot.index(), state)?;
            states = rest;
        }
        Ok(Some(slot))
    }

    /// Size of the rows of one token in all layers, in bytes.
    pub fn token_bytes(&self) -> usize {
        self.layout().token_bytes()
    }

    /// Maximum number of drafts in a step of `sequences` sequences for which state slots are free.
    /// Unlimited in a model without recurrent layers.
    pub(crate) fn room_for_drafted_states(&self, sequences: usize) -> usize {
        // Each sequence needs one slot for the state after its own token.
        self.states.as_ref().map_or(usize::MAX, |states| states.available().saturating_sub(sequences))
    }

    /// Number of slots of recurrent state, for running sequences and snapshots. 0 for a model
    /// without recurrent layers.
    pub fn state_slots(&self) -> usize {
        self.states.as_ref().map_or(0, |states| states.count())
    }

    /// Number of free slots of recurrent state.
    pub fn available_states(&self) -> usize {
        self.states.as_ref().map_or(0, |states| states.available())
    }

    /// The stored row of one layer at a position of a sequence, in the encoding of
    /// [`CacheRow`](latent_types::CacheRow).
    ///
    /// # Errors
    /// If the sequence has no such position or belongs to another cache, the layer has no rows, or
    /// the backend fails to read its memory.
    pub fn row(&self, sequence: &Sequence, layer: usize, position: usize) -> Result<Vec<u8>, BackendError> {
        let refuse = |problem| Err(BackendError::Unsupported(problem));
        if !self.owns(sequence) || position >= sequence.len() {
            return refuse(format!(
                "position {position} is out of range: the sequence has {} rows in this cache",
                sequence.len()
            ));
        }
        if self.layout().layers.get(layer).is_none_or(|layer| layer.per_token().is_none()) {
            let layers = self.layout().layers.len();
            return refuse(format!("layer {layer} of {layers} cache layers has no rows"));
        }
        let mut row = vec![0; self.layout().row(layer).bytes()];
        self.store.read_rows(layer, slot(sequence.block_table(), position), &mut row)?;
        Ok(row)
    }

    /// Whether the sequence's blocks belong to this cache. True for a sequence without blocks.
    pub(crate) fn owns(&self, sequence: &Sequence) -> bool {
        sequence.owner.as_ref().is_none_or(|owner| Arc::ptr_eq(owner, &self.pool))
    }

    pub(super) fn full(&self, sequence: &Sequence, rows: usize) -> CacheFull {
        CacheFull { rows, cached: sequence.len(), capacity: self.capacity() }
    }

    /// Requests a snapshot of the recurrent state after `position` rows.
    pub(crate) fn snapshot_at(&self, sequence: &mut Sequence, position: usize) {
        if let Some(states) = &self.states {
            // A sequence that has not run yet has no state that could hold the request.
            sequence.owner.get_or_insert_with(|| Arc::clone(&self.pool));
            sequence.recurrent.get_or_insert_with(|| RecurrentState::new(states));
            sequence.snapshot_at(position);
        }
    }

    /// Reserves room for a step that adds `rows` rows to `sequence`: blocks, and slots for the
    /// recurrent states that the step writes.
    ///
    /// # Errors
    /// [`KvError`]. The sequence is unchanged, but may have lost snapshots.
    ///
    /// # Panics
    /// If the sequence belongs to another pool.
    pub(crate) fn reserve(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), KvError> {
        self.reserve_for(sequence, rows, RecurrentState::prepare)
    }

    /// [`reserve`](Self::reserve) for a token and its drafts, with a slot for the state after each
    /// row.
    ///
    /// # Errors
    /// As for [`reserve`](Self::reserve).
    ///
    /// # Panics
    /// As for [`reserve`](Self::reserve).
    pub(crate) fn reserve_drafted(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), KvError> {
        self.reserve_for(sequence, rows, RecurrentState::prepare_drafted)
    }

    fn reserve_for(
        &mut self,
        sequence: &mut Sequence,
        rows: usize,
        prepare: impl Fn(&mut RecurrentState, usize, usize) -> Result<(), StatesFull>,
    ) -> Result<(), KvError> {
        self.reserve_blocks(sequence, rows)?;
        let Some(states) = &self.states else { return Ok(()) };
        let state = sequence.recurrent.get_or_insert_with(|| RecurrentState::new(states));
        // After the blocks: preparing may drop snapshots, in vain if no block were free.
        if let Err(full) = prepare(state, sequence.len, rows) {
            // Other sequences of the step can use the blocks.
            sequence.release_spare_blocks();
            return Err(full.into());
        }
        Ok(())
    }

    /// Reserves blocks for `rows` more rows of `sequence`. Copies its last block if that is partly
    /// filled and shared.
    ///
    /// # Errors
    /// [`KvError`]. The sequence is unchanged.
    ///
    /// # Panics
    /// If the sequence belongs to another pool.
    pub(super) fn reserve_blocks(&mut self, sequence: &mut Sequence, rows: usize) -> Result<(), KvError> {
        assert!(self.owns(sequence), "a sequence of another cache");
        let pool = Arc::clone(&self.pool);
        // Locked until the end, so that the users and free blocks remain as checked while other
        // threads drop or share sequences.
        let mut blocks = pool.blocks();
        let (fresh, copy) = wanted(&blocks, sequence, rows);
        if fresh + usize::from(copy.is_some()) > blocks.free() {
            return Err(self.full(sequence, rows).into());
        }
        if copy.is_some() {
            let last = sequence.len() / KV_BLOCK;
            self.own_block(&mut blocks, sequence, last)?;
        }
        // The check above guarantees `fresh` free blocks.
        sequence.blocks.extend((0..fresh).map_while(|_| blocks.take()));
        sequence.owner.get_or_insert_with(|| Arc::clone(&pool));
        Ok(())
    }

    /// Copies the shared blocks of these cached rows, so that the MTP layer can write its rows of
    /// them.
    ///
    /// # Errors
    /// [`KvError`]. Some blocks may have been copied, but the contents of the sequence are
    /// unchanged.
    pub(crate) fn own_rows(&mut self, sequence: &mut Sequence, rows: Range<usize>) -> Result<(), KvError> {
        let pool = Arc::clone(&self.pool);
        let mut blocks = pool.blocks();
        for index in rows.start / KV_BLOCK..rows.end.div_ceil(KV_BLOCK) {
            if blocks.users(sequence.blocks[index]) > 1 && blocks.free() == 0 {
                return Err(self.full(sequence, 0).into());
            }
            self.own_block(&mut blocks, sequence, index)?;
        }
        Ok(())
    }

    /// Copies the block at `index` if it is shared. Callers have checked that a block is free.
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
        // The block table changes only after the copy has succeeded.
        if let Err(error) = self.store.copy_block(old, new) {
            blocks.release(new);
            return Err(error);
        }
        blocks.release(old);
        sequence.blocks[index] = new;
        Ok(())
    }

    /// Discards the rows `forgotten` of `sequence`. The rows after them move down. Latents do not
    /// depend on the position, so only the rope part of each moved row is rotated, in place, and
    /// rounded once more to the cache's type.
    ///
    /// # Errors
    /// [`KvError`] if shared blocks must be copied and no block is free. The sequence is unchanged.
    ///
    /// # Panics
    /// If `forgotten` is not within the cached rows, the sequence belongs to another cache, or a
    /// layer is recurrent.
    pub(crate) fn shift(&mut self, sequence: &mut Sequence, forgotten: Range<usize>) -> Result<(), KvError> {
        assert!(self.owns(sequence), "a sequence of another cache");
        assert!(self.states.is_none(), "recurrent layers cannot forget tokens");
        assert!(
            forgotten.start <= forgotten.end && forgotten.end <= sequence.len(),
            "shift outside the sequence"
        );
        if forgotten.is_empty() {
            return Ok(());
        }
        let distance = forgotten.len();
        let len = sequence.len() - distance;
        // Blocks that rows move into. Blocks after them are only read, and released below.
        let written = forgotten.start / KV_BLOCK..len.div_ceil(KV_BLOCK);
        let pool = Arc::clone(&self.pool);
        let mut blocks = pool.blocks();
        let shared = written.clone().filter(|&i| blocks.users(sequence.blocks[i]) > 1).count();
        if shared > blocks.free() {
            return Err(self.full(sequence, 0).into());
        }
        // All copies come before the first move, so that an error leaves the rows as they were.
        for index in written {
            self.own_block(&mut blocks, sequence, index)?;
        }
        // `truncate` below locks the pool again.
        drop(blocks);
        // In ascending order: a row is read before a later one is moved onto it.
        for to in forgotten.start..len {
            let at = |position| slot(sequence.block_table(), position);
            self.store.shift_token(at(to + distance), at(to), -(distance as i64))?;
        }
        // The moved rows have attended to the discarded ones, so no list of tokens describes them.
        sequence.tokens.truncate(forgotten.start);
        // Only the first embedding's position is known. If it has moved or was discarded, any moved
        // row may be an embedding.
        sequence.embedded_from = sequence.embedded_from.map(|first| first.min(forgotten.start));
        sequence.draft.shift(&forgotten);
        // Releases the blocks at the end.
        sequence.truncate(len);
        Ok(())
    }
}

/// The number of new blocks for `rows` more rows, and the shared block that must be copied first.
fn wanted(blocks: &Blocks, sequence: &Sequence, rows: usize) -> (usize, Option<u32>) {
    let fresh = (sequence.len() + rows).div_ceil(KV_BLOCK).saturating_sub(sequence.blocks.len());
    // A step without rows writes nothing, so it needs no copy.
    (fresh, sequence.next_block().filter(|block| rows > 0 && blocks.users(*block) > 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_backend::{LayerState, RecurrentLayer, StateShape};
    use latent_backend_reference::HostKvStore;
    use latent_graph::ir::{KvLayer, KvLayerKind};
    use latent_types::CacheType;

    fn cache(tokens: usize) -> KvCache {
        let kv_layer = |layer| KvLayer::of_rows(KvLayerKind::Latent, layer, 6, 2);
        let layers = vec![LayerState::PerToken(kv_layer(0)), LayerState::PerToken(kv_layer(1))];
        let blocks = tokens.div_ceil(KV_BLOCK) as u32;
        let layout = KvLayout { layers, cache_type: CacheType::F32, blocks, state_slots: 0 };
        KvCache::new(Box::new(HostKvStore::new(layout)), StateOptions::default(), 0)
    }

    fn fill(cache: &mut KvCache, sequence: &mut Sequence, rows: usize, tag: f32) {
        cache.reserve(sequence, rows).unwrap();
        for position in sequence.len()..sequence.len() + rows {
            let elements = (0..6).map(|i| tag + position as f32 + i as f32 / 8.0);
            let row: Vec<u8> = elements.flat_map(f32::to_le_bytes).collect();
            for layer in 0..2 {
                cache.store.write_rows(layer, slot(sequence.block_table(), position), &row).unwrap();
            }
        }
        sequence.advance_tokens(&vec![0; rows]);
    }

    fn first_element(cache: &KvCache, sequence: &Sequence, position: usize) -> f32 {
        let mut row = vec![0; cache.layout().row(1).bytes()];
        cache.store.read_rows(1, slot(sequence.block_table(), position), &mut row).unwrap();
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
    fn a_cache_of_states_alone_shares_and_restores_them() {
        let state = RecurrentLayer { layer: 0, shape: StateShape { heads: 1, rows: 1, columns: 1 } };
        let options = StateOptions { sequences: 1, snapshots: 2, every: 64 };
        let layout = KvLayout {
            layers: vec![LayerState::Recurrent(state)],
            cache_type: CacheType::F32,
            blocks: 8,
            state_slots: options.slots().unwrap(),
        };
        assert_eq!((layout.token_bytes(), layout.state_bytes(), layout.state_slots), (0, 4, 4));
        let mut cache = KvCache::new(Box::new(HostKvStore::new(layout)), options, 0);
        // Acts as a backend: the state after n rows is n.
        let run = |cache: &mut KvCache, sequence: &mut Sequence, rows: usize| {
            cache.reserve(sequence, rows).unwrap();
            let first = sequence.len();
            let slots = sequence.span_state().unwrap();
            assert_eq!(slots.from.is_none(), first == 0);
            if let Some(from) = slots.from {
                let mut state = [0; 4];
                cache.store.read_state(0, from, &mut state).unwrap();
                assert_eq!(f32::from_le_bytes(state), first as f32);
            }
            for (done, slot) in slots.kept.iter().chain(&[(rows, slots.to)]) {
                assert_ne!(Some(*slot), slots.from, "the state before is never written");
                cache.store.write_state(0, *slot, &((first + done) as f32).to_le_bytes()).unwrap();
            }
            sequence.advance_tokens(&vec![0; rows]);
        };
        let mut a = Sequence::default();
        run(&mut cache, &mut a, 70);
        run(&mut cache, &mut a, 58);
        let mut b = a.share(100);
        assert_eq!((b.len(), a.snapshots().collect::<Vec<_>>()), (64, vec![64, 128]));
        run(&mut cache, &mut b, 5);
        run(&mut cache, &mut a, 1);
        assert_eq!(a.truncate(127), 64);
        drop(b);
        run(&mut cache, &mut a, 10);
        assert_eq!((a.len(), cache.available_states()), (74, 2));
        drop(a);
        assert_eq!((cache.available(), cache.available_states()), (512, 4));
    }

    #[test]
    fn a_full_cache_returns_an_error_and_stays_unchanged() {
        let mut cache = cache(128);
        let mut a = Sequence::default();
        fill(&mut cache, &mut a, 100, 0.0);
        let KvError::Full(full) = cache.reserve(&mut a, 29).unwrap_err() else { panic!("no block is free") };
        assert_eq!(full, CacheFull { rows: 29, cached: 100, capacity: 128 });
        assert!(
            full.to_string().contains("100 cached and 29 new tokens do not fit into a context of 128 tokens")
        );
        fill(&mut cache, &mut a, 28, 0.0);
        a.truncate(64);
        assert_eq!((a.len(), a.block_table().len(), cache.available()), (64, 1, 64));
    }

    #[test]
    fn a_dropped_sequence_releases_its_blocks() {
        let mut cache = cache(512);
        for _ in 0..20 {
            let mut a = Sequence::default();
            fill(&mut cache, &mut a, 300, 0.0);
            let b = a.share(200);
            // Blocks that were reserved for an unfinished step are released too.
            cache.reserve(&mut a, 100).unwrap();
            assert_eq!(cache.available(), 64);
            drop(a);
            assert_eq!(cache.available(), 256);
            drop(b);
            assert_eq!(cache.available(), 512);
        }
        // Sequences may outlive their cache.
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
        a.advance_tokens(&[0; 65]);
    }
}
