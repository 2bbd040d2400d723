//! The KV cache of a backend: blocks of rows, addressed by slots, and recurrent states in separate
//! slots.

use crate::{BackendError, LayerState, StateShape};
use latent_types::{CacheRow, CacheType};
use std::any::Any;

/// Tokens per block of the KV cache, and rows per tile of attention kernels.
pub const KV_BLOCK: usize = 64;

/// The slot of a token: its row in the memory of every layer. `block_table` has the blocks of its
/// sequence, in order.
///
/// # Panics
/// If the sequence has no block for this position.
#[inline]
pub fn slot(block_table: &[u32], position: usize) -> usize {
    // The only address computation of the cache. The index panics if a caller forgot to reserve a
    // block.
    block_table[position / KV_BLOCK] as usize * KV_BLOCK + position % KV_BLOCK
}

/// Layout and capacity of a KV cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The state of each layer, in the order of the plans' `kv_layers`.
    pub layers: Vec<LayerState>,
    /// Element type of rows. Recurrent states are f32.
    pub cache_type: CacheType,
    /// Blocks of [`KV_BLOCK`] tokens.
    pub blocks: u32,
    /// Slots of recurrent state. Each holds the state of every recurrent layer.
    pub state_slots: u32,
}

impl KvLayout {
    /// Number of row slots per layer.
    pub fn slots(&self) -> usize {
        self.blocks as usize * KV_BLOCK
    }

    /// The encoding of a row of this layer.
    ///
    /// # Panics
    /// If the layer is recurrent, and so has no rows.
    pub fn row(&self, layer: usize) -> CacheRow {
        match &self.layers[layer] {
            LayerState::PerToken(rows) => rows.row(self.cache_type),
            LayerState::Recurrent(_) => panic!("layer {layer} of the cache is recurrent: it has no rows"),
        }
    }

    /// The recurrent layers with their index in `layers`.
    pub fn recurrent(&self) -> impl Iterator<Item = (usize, &StateShape)> {
        self.layers.iter().enumerate().filter_map(|(index, layer)| Some((index, &layer.recurrent()?.shape)))
    }

    /// Whether any layer is recurrent. If so, sequences need state slots.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent().next().is_some()
    }

    /// Bytes per token, over all layers.
    pub fn token_bytes(&self) -> usize {
        LayerState::token_bytes(&self.layers, self.cache_type)
    }

    /// Bytes per slot of recurrent state, over all layers.
    pub fn state_bytes(&self) -> usize {
        LayerState::state_bytes(&self.layers)
    }
}

/// Storage of the KV cache in a backend's memory. The interface uses the row encoding of
/// [`CacheRow`], regardless of the internal one. A recurrent state is f32, little-endian.
///
/// A store does not track slots: the engine knows which are in use, and never lets two sequences
/// write the same block.
///
/// A slot of recurrent state is written once, by a step or while a file is loaded. Until it is
/// freed it is only read: a step reads one slot and writes others
/// ([`SpanState`](crate::SpanState)). Snapshots, forks and the state before a failed step therefore
/// need no copy.
pub trait KvStore: Any + Send {
    fn layout(&self) -> &KvLayout;

    /// Copies a block in every layer with rows, before a sequence writes to a shared block.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError>;

    /// Reads rows of consecutive slots from `first` into `rows`, [`CacheRow::bytes`] each, until it
    /// is full. On devices and other hosts one row takes as long as many.
    fn read_rows(&self, layer: usize, first: usize, rows: &mut [u8]) -> Result<(), BackendError>;

    /// Writes rows of consecutive slots from `first`.
    fn write_rows(&mut self, layer: usize, first: usize, rows: &[u8]) -> Result<(), BackendError>;

    /// Reads the state of a recurrent layer, [`StateShape::bytes`] long.
    fn read_state(&self, layer: usize, slot: u32, state: &mut [u8]) -> Result<(), BackendError>;

    /// Writes the state of a recurrent layer, [`StateShape::bytes`] long.
    fn write_state(&mut self, layer: usize, slot: u32, state: &[u8]) -> Result<(), BackendError>;

    /// Copies the row of every layer with rows from one slot to another and rotates its rope part
    /// by `distance` positions: a context shift. The other elements keep their bits. Not called for
    /// models with recurrent layers.
    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError>;

    /// For a downcast by the backend that created the store.
    fn as_any(&self) -> &dyn Any;

    /// For a downcast by the backend that created the store.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_follow_the_block_table() {
        let table = [7, 0, 3];
        assert_eq!(slot(&table, 0), 7 * KV_BLOCK);
        assert_eq!(slot(&table, KV_BLOCK - 1), 8 * KV_BLOCK - 1);
        assert_eq!(slot(&table, KV_BLOCK), 0);
        assert_eq!(slot(&table, 2 * KV_BLOCK + 5), 3 * KV_BLOCK + 5);
    }

    #[test]
    #[should_panic(expected = "index out of bounds")]
    fn a_position_without_a_block_has_no_slot() {
        slot(&[1], KV_BLOCK);
    }
}
