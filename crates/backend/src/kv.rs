//! The KV cache as a backend stores it: blocks of rows, addressed by slots.

use crate::BackendError;
use latent_graph::ir::KvLayer;
use latent_types::{CacheRow, CacheType};
use std::any::Any;

/// Tokens per block of the KV cache. Attention kernels work through the cache in tiles of as many rows.
pub const KV_BLOCK: usize = 64;

/// The slot of a token: its row in the memory of every layer. `block_table` lists the blocks of its sequence in order.
///
/// # Panics
/// When the sequence has no block for this position.
#[inline]
pub fn slot(block_table: &[u32], position: usize) -> usize {
    block_table[position / KV_BLOCK] as usize * KV_BLOCK + position % KV_BLOCK
}

/// What a KV cache stores per token, and how many tokens it has room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The layers, in the order of the plans' `kv_layers`.
    pub layers: Vec<KvLayer>,
    /// Element type.
    pub cache_type: CacheType,
    /// Blocks of [`KV_BLOCK`] tokens.
    pub blocks: u32,
}

impl KvLayout {
    /// Slots of each layer.
    pub fn slots(&self) -> usize {
        self.blocks as usize * KV_BLOCK
    }

    /// How a row of this layer is stored.
    pub fn row(&self, layer: usize) -> CacheRow {
        self.layers[layer].row(self.cache_type)
    }

    /// Bytes that one token takes, in all layers together.
    pub fn token_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.row(self.cache_type).bytes()).sum()
    }
}

/// Storage of the KV cache in a backend's memory. A row has the encoding of [`CacheRow`], whatever the backend does with it inside.
///
/// A store takes slots as they come: the engine alone knows which are in use, and never lets two sequences write one block.
pub trait KvStore: Any + Send {
    /// What is stored.
    fn layout(&self) -> &KvLayout;

    /// Copies a block in every layer, for a sequence that is about to write to a block which others share.
    ///
    /// # Errors
    /// When the device fails.
    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError>;

    /// Reads a row, [`CacheRow::bytes`] long.
    ///
    /// # Errors
    /// When the device fails.
    fn read_row(&self, layer: usize, slot: usize, row: &mut [u8]) -> Result<(), BackendError>;

    /// Writes a row, [`CacheRow::bytes`] long.
    ///
    /// # Errors
    /// When the device fails.
    fn write_row(&mut self, layer: usize, slot: usize, row: &[u8]) -> Result<(), BackendError>;

    /// Copies the row of every layer from one slot to another and rotates its rope part by `distance` positions: a context shift. Elements
    /// without position keep their very bits.
    ///
    /// # Errors
    /// When the device fails.
    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError>;

    /// For the backend that made it.
    fn as_any(&self) -> &dyn Any;

    /// For the backend that made it.
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
