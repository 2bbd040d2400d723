//! The KV cache in host memory.

use crate::kv_memory::KvLayerMemory;
use latent_backend::{BackendError, KvLayout, KvStore, LayerState, StateShape};
use latent_graph::ModelConfig;
use latent_graph::ir::{KvLayer, KvLayerKind};
use latent_kernels::{RopePairing, RopeTable};
use latent_types::CacheType;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// The KV cache: blocks of rows for every attention layer, and states for every recurrent layer.
/// Attention reads rows in place. The workers of a step write disjoint rows.
pub(crate) struct CpuKvStore {
    layout: KvLayout,
    layers: Vec<(LayerState, KvLayerMemory)>,
    rotation: ShiftRotation,
}

/// Model data for context shifts, which move rows to other positions and rotate their keys.
#[derive(Clone)]
pub(crate) struct ShiftRotation {
    /// Rotation angles.
    pub rope: Arc<RopeTable>,
    /// Which elements of a rope part form pairs.
    pub pairs: RopePairing,
    /// The pairing in an indexer.
    pub index_pairs: RopePairing,
    /// Elements of the rope part.
    pub rope_dims: usize,
    /// Elements of a head's key without position (expanded layers).
    pub nope: usize,
    /// Elements of a head's value (expanded layers).
    pub v: usize,
}

impl ShiftRotation {
    /// Creates the rotation of a model with the pairings of its attention and of its indexer.
    pub fn new(
        config: &ModelConfig,
        rope: Arc<RopeTable>,
        [pairs, index_pairs]: [RopePairing; 2],
    ) -> ShiftRotation {
        let a = &config.attention;
        ShiftRotation { rope, pairs, index_pairs, rope_dims: a.rope, nope: a.nope, v: a.v }
    }

    /// The rope parts of a row.
    fn parts(&self, kv_layer: &KvLayer) -> Vec<Range<usize>> {
        match kv_layer.kind {
            KvLayerKind::Index => std::iter::once(0..self.rope_dims).collect(),
            KvLayerKind::Latent => std::iter::once(kv_layer.width - self.rope_dims..kv_layer.width).collect(),
            KvLayerKind::ConvInputs | KvLayerKind::DeltaState => Vec::new(),
            KvLayerKind::Expanded => {
                let head = self.nope + self.rope_dims + self.v;
                let part = |h: usize| h * head + self.nope..h * head + self.nope + self.rope_dims;
                (0..kv_layer.width / head).map(part).collect()
            }
        }
    }
}

impl CpuKvStore {
    /// Reserves the memory. The system commits a page when it is first written.
    pub(crate) fn new(layout: KvLayout, rotation: ShiftRotation) -> Result<CpuKvStore, BackendError> {
        let memory = KvLayerMemory::reserve(layout.layers.iter().map(|layer| match layer {
            LayerState::PerToken(rows) => (layout.slots(), rows.row(layout.cache_type).bytes()),
            LayerState::Recurrent(state) => (layout.state_slots as usize, state.shape.bytes()),
        }))
        .map_err(|error| BackendError::System { what: "reserving memory for the KV cache", error })?;
        let layers = layout.layers.iter().cloned().zip(memory).collect();
        Ok(CpuKvStore { layout, layers, rotation })
    }

    /// A layer with rows, and their memory.
    ///
    /// # Panics
    /// When the layer is recurrent. Compiled plans never pass one.
    pub(crate) fn kv_layer(&self, layer: usize) -> (&KvLayer, &KvLayerMemory) {
        let (state, memory) = &self.layers[layer];
        (state.per_token().expect("a layer with rows"), memory)
    }

    /// A recurrent layer, and the memory of its states.
    ///
    /// # Panics
    /// When the layer has rows. Compiled plans never pass one.
    pub(crate) fn state_layer(&self, layer: usize) -> (&StateShape, &KvLayerMemory) {
        let (state, memory) = &self.layers[layer];
        (&state.recurrent().expect("a recurrent layer").shape, memory)
    }

    pub(crate) fn cache_type(&self) -> CacheType {
        self.layout.cache_type
    }
}

impl KvStore for CpuKvStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        // States are not in blocks. A state slot is written once and then shared, never copied.
        let with_rows = self.layers.iter_mut().filter(|(layer, _)| layer.per_token().is_some());
        with_rows.for_each(|(_, memory)| memory.copy_block(from as usize, to as usize));
        Ok(())
    }

    fn read_rows(&self, layer: usize, first: usize, rows: &mut [u8]) -> Result<(), BackendError> {
        let bytes = self.layout.row(layer).bytes();
        for (slot, row) in (first..).zip(rows.chunks_exact_mut(bytes)) {
            row.copy_from_slice(self.layers[layer].1.row(slot));
        }
        Ok(())
    }

    fn write_rows(&mut self, layer: usize, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        let bytes = self.layout.row(layer).bytes();
        for (slot, row) in (first..).zip(rows.chunks_exact(bytes)) {
            self.layers[layer].1.row_mut(slot).copy_from_slice(row);
        }
        Ok(())
    }

    fn read_state(&self, layer: usize, slot: u32, state: &mut [u8]) -> Result<(), BackendError> {
        state.copy_from_slice(self.layers[layer].1.row(slot as usize));
        Ok(())
    }

    fn write_state(&mut self, layer: usize, slot: u32, state: &[u8]) -> Result<(), BackendError> {
        self.layers[layer].1.row_mut(slot as usize).copy_from_slice(state);
        Ok(())
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        let mut elements = Vec::new();
        for (layer, memory) in &mut self.layers {
            let LayerState::PerToken(kv_layer) = layer else { continue };
            elements.resize(kv_layer.width, 0.0);
            let row = kv_layer.row(self.layout.cache_type);
            latent_kernels::load_row(row, memory.row(from), &mut elements);
            // Only the rope parts are decoded and rounded again. The other elements keep their
            // bits, so repeated shifts do not degrade them.
            memory.copy_row(from, to);
            for part in self.rotation.parts(kv_layer) {
                let index = kv_layer.kind == KvLayerKind::Index;
                let pairs = if index { self.rotation.index_pairs } else { self.rotation.pairs };
                self.rotation.rope.shift(&mut elements[part.clone()], distance, pairs);
                if index && !row.ty.is_float() {
                    // An int8 index row has a single scale, so a change of its rope part
                    // requantizes all of it.
                    latent_kernels::store_row(row, &elements, memory.row_mut(to));
                } else {
                    latent_kernels::store_part(row, part.start, &elements[part], memory.row_mut(to));
                }
            }
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_backend::{KV_BLOCK, RecurrentLayer, StateShape};

    /// Four elements, and a pair before it is rotated.
    const ROW: [f32; 6] = [0.5, -3.0, 1.25, 0.0, 0.75, 0.25];

    fn rotation() -> ShiftRotation {
        let rope = Arc::new(RopeTable::new(vec![0.25], 1.0));
        ShiftRotation {
            rope,
            pairs: RopePairing::NeoX,
            index_pairs: RopePairing::NeoX,
            rope_dims: 2,
            nope: 0,
            v: 0,
        }
    }

    #[test]
    fn recurrent_states_and_rows_do_not_overlap() {
        let rows = KvLayer::of_rows(KvLayerKind::Latent, 0, ROW.len(), 2);
        let state =
            |layer, columns| RecurrentLayer { layer, shape: StateShape { heads: 2, rows: 3, columns } };
        let layers = vec![
            LayerState::Recurrent(state(1, 5)),
            LayerState::PerToken(rows),
            LayerState::Recurrent(state(2, 1)),
        ];
        // int8 rows: their memory ends within a cache line.
        let layout = KvLayout { layers, cache_type: CacheType::Int8, blocks: 2, state_slots: 3 };
        let bytes = [4 * 2 * 3 * 5, layout.row(1).bytes(), 4 * 2 * 3];
        assert_eq!((layout.token_bytes(), layout.state_bytes()), (bytes[1], bytes[0] + bytes[2]));
        let mut store = CpuKvStore::new(layout, rotation()).unwrap();
        let written = |layer: usize, slot: usize| vec![(1 + 50 * layer + slot) as u8; bytes[layer]];
        let slots = |layer: usize| if layer == 1 { 2 * KV_BLOCK } else { 3 };
        for layer in 0..3 {
            for slot in 0..slots(layer) {
                let result = match layer {
                    1 => store.write_rows(1, slot, &written(1, slot % 40)),
                    _ => store.write_state(layer, slot as u32, &written(layer, slot)),
                };
                result.unwrap();
            }
        }
        store.copy_block(0, 1).unwrap();
        store.shift_token(5, 6, -1).unwrap();
        for layer in [0, 2] {
            for slot in 0..3 {
                let mut state = vec![0; bytes[layer]];
                store.read_state(layer, slot as u32, &mut state).unwrap();
                assert_eq!(state, written(layer, slot), "layer {layer}, slot {slot}");
                assert_eq!(store.layers[layer].1.row(slot).as_ptr() as usize % 4, 0);
            }
        }
        let mut row = vec![0; bytes[1]];
        store.read_rows(1, KV_BLOCK + 9, &mut row).unwrap();
        assert_eq!(row, written(1, 9), "a block is copied");
    }

    #[test]
    fn a_shift_keeps_the_bits_of_quants_and_scale_and_rotates_the_rope_part() {
        let kv_layer = KvLayer::of_rows(KvLayerKind::Latent, 0, ROW.len(), 2);
        let layers = vec![LayerState::PerToken(kv_layer)];
        let layout = KvLayout { layers, cache_type: CacheType::Int8, blocks: 2, state_slots: 0 };
        let row = layout.row(0);
        let rotation = rotation();
        let rope = Arc::clone(&rotation.rope);
        let mut store = CpuKvStore::new(layout, rotation).unwrap();
        let mut bytes = vec![0; row.bytes()];
        for position in 0..80 {
            let mut elements = ROW;
            elements[0] += position as f32;
            rope.shift(&mut elements[4..], position as i64, RopePairing::NeoX);
            latent_kernels::store_row(row, &elements, &mut bytes);
            store.write_rows(0, position, &bytes).unwrap();
        }
        let read = |store: &CpuKvStore, slot: usize| {
            let mut bytes = vec![0; row.bytes()];
            store.read_rows(0, slot, &mut bytes).unwrap();
            bytes
        };
        let before: Vec<_> = (0..80).map(|slot| read(&store, slot)).collect();
        for to in 3..70 {
            store.shift_token(to + 10, to, -10).unwrap();
        }
        for position in 3..70 {
            let (old, new) = (&before[position + 10], read(&store, position));
            assert_eq!((&old[..4], &old[8..]), (&new[..4], &new[8..]), "row {position}");
            let mut found = [0.0; 6];
            latent_kernels::load_row(row, &new, &mut found);
            rope.shift(&mut found[4..], -(position as i64), RopePairing::NeoX);
            assert!(
                (found[4] - ROW[4]).abs() + (found[5] - ROW[5]).abs() < 2e-3,
                "row {position}: {found:?}"
            );
        }
    }
}
