//! The KV cache in host memory.

use crate::kv_memory::KvLayerMemory;
use latent_backend::{BackendError, KvLayout, KvStore};
use latent_graph::ModelConfig;
use latent_graph::ir::{KvLayer, KvLayerKind};
use latent_kernels::{RopePairs, RopeTable};
use latent_types::CacheType;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Blocks of rows of every KV layer. Attention reads them in place; the workers of a step write disjoint
/// rows.
pub(crate) struct CpuKvStore {
    layout: KvLayout,
    layers: Vec<(KvLayer, KvLayerMemory)>,
    rotation: Rotation,
}

/// What a context shift must know about the model.
#[derive(Clone)]
pub(crate) struct Rotation {
    /// Rotation angles.
    pub rope: Arc<RopeTable>,
    /// Which elements pair up.
    pub pairs: RopePairs,
    /// Elements of the rope part.
    pub rope_dims: usize,
    /// Elements of a head's key without position (expanded layers).
    pub nope: usize,
    /// Elements of a head's value (expanded layers).
    pub v: usize,
}

impl Rotation {
    pub fn new(config: &ModelConfig, rope: Arc<RopeTable>, pairs: RopePairs) -> Rotation {
        let a = &config.attention;
        Rotation { rope, pairs, rope_dims: a.rope, nope: a.nope, v: a.v }
    }

    /// Where the rope parts of a row are.
    fn parts(&self, kv_layer: &KvLayer) -> Vec<Range<usize>> {
        match kv_layer.kind {
            KvLayerKind::Latent => std::iter::once(kv_layer.width - self.rope_dims..kv_layer.width).collect(),
            KvLayerKind::Expanded => {
                let head = self.nope + self.rope_dims + self.v;
                let part = |h: usize| h * head + self.nope..h * head + self.nope + self.rope_dims;
                (0..kv_layer.width / head).map(part).collect()
            }
        }
    }
}

impl CpuKvStore {
    /// Reserves the memory; the system commits a page when it is first written.
    pub(crate) fn new(layout: KvLayout, rotation: Rotation) -> Result<CpuKvStore, BackendError> {
        let row_bytes = layout.layers.iter().map(|layer| layer.row(layout.cache_type).bytes());
        let memory = KvLayerMemory::reserve(layout.slots(), row_bytes)
            .map_err(|error| BackendError::System { what: "reserving memory for the KV cache", error })?;
        let layers = layout.layers.iter().cloned().zip(memory).collect();
        Ok(CpuKvStore { layout, layers, rotation })
    }

    /// The layers and their memory.
    pub(crate) fn kv_layers(&self) -> &[(KvLayer, KvLayerMemory)] {
        &self.layers
    }

    /// Element type.
    pub(crate) fn cache_type(&self) -> CacheType {
        self.layout.cache_type
    }
}

impl KvStore for CpuKvStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.layers.iter_mut().for_each(|(_, memory)| memory.copy_block(from as usize, to as usize));
        Ok(())
    }

    fn read_row(&self, layer: usize, slot: usize, row: &mut [u8]) -> Result<(), BackendError> {
        row.copy_from_slice(self.layers[layer].1.row(slot));
        Ok(())
    }

    fn write_row(&mut self, layer: usize, slot: usize, row: &[u8]) -> Result<(), BackendError> {
        self.layers[layer].1.row_mut(slot).copy_from_slice(row);
        Ok(())
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        let mut elements = Vec::new();
        for (kv_layer, memory) in &mut self.layers {
            elements.resize(kv_layer.width, 0.0);
            let row = kv_layer.row(self.layout.cache_type);
            latent_kernels::load_row(row, memory.row(from), &mut elements);
            // elements without position keep their bits: only the rope parts are rounded again
            memory.copy_row(from, to);
            for part in self.rotation.parts(kv_layer) {
                self.rotation.rope.shift(&mut elements[part.clone()], distance, self.rotation.pairs);
                latent_kernels::store_part(row, part.start, &elements[part], memory.row_mut(to));
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

    /// Four elements, and a pair before it is rotated.
    const ROW: [f32; 6] = [0.5, -3.0, 1.25, 0.0, 0.75, 0.25];

    #[test]
    fn quants_and_their_scale_keep_their_bits_and_the_rope_part_turns_back() {
        let kv_layer = KvLayer { kind: KvLayerKind::Latent, layer: 0, width: ROW.len(), rope: 2 };
        let layout = KvLayout { layers: vec![kv_layer], cache_type: CacheType::Int8, blocks: 2 };
        let row = layout.row(0);
        let rope = Arc::new(RopeTable::new(vec![0.25], 1.0));
        let rotation =
            Rotation { rope: Arc::clone(&rope), pairs: RopePairs::NeoX, rope_dims: 2, nope: 0, v: 0 };
        let mut store = CpuKvStore::new(layout, rotation).unwrap();
        let mut bytes = vec![0; row.bytes()];
        for position in 0..80 {
            let mut elements = ROW;
            elements[0] += position as f32;
            rope.shift(&mut elements[4..], position as i64, RopePairs::NeoX);
            latent_kernels::store_row(row, &elements, &mut bytes);
            store.write_row(0, position, &bytes).unwrap();
        }
        let read = |store: &CpuKvStore, slot: usize| {
            let mut bytes = vec![0; row.bytes()];
            store.read_row(0, slot, &mut bytes).unwrap();
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
            rope.shift(&mut found[4..], -(position as i64), RopePairs::NeoX);
            assert!(
                (found[4] - ROW[4]).abs() + (found[5] - ROW[5]).abs() < 2e-3,
                "row {position}: {found:?}"
            );
        }
    }
}
