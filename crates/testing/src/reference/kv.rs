//! A KV cache in plain memory.

use super::rotation::Rotation;
use latent_backend::{BackendError, KV_BLOCK, KvLayout, KvStore};
use latent_graph::ir::KvLayerKind;
use latent_types::CacheType;
use std::any::Any;
use std::ops::Range;

/// Rows of f32, in the layout of a block table.
pub struct HostKvStore {
    layout: KvLayout,
    layers: Vec<Vec<f32>>,
    rotation: Option<Rotation>,
}

impl HostKvStore {
    /// An empty cache.
    ///
    /// # Panics
    /// When it is to store another type than f32.
    pub fn new(layout: KvLayout) -> HostKvStore {
        assert_eq!(layout.cache_type, CacheType::F32, "the reference backend keeps its KV cache in f32");
        let layers = layout.layers.iter().map(|layer| vec![0.0; layout.slots() * layer.width]).collect();
        HostKvStore { layout, layers, rotation: None }
    }

    /// The same for a model that rotates like this, so that contexts can be shifted.
    pub(super) fn of_model(layout: KvLayout, rotation: Rotation) -> HostKvStore {
        HostKvStore { rotation: Some(rotation), ..HostKvStore::new(layout) }
    }

    /// A row: `[latent | rotated key]`, or per head `[key | rotated key | value]`.
    pub(super) fn row(&self, layer: usize, slot: usize) -> &[f32] {
        let width = self.layout.layers[layer].width;
        &self.layers[layer][slot * width..(slot + 1) * width]
    }

    pub(super) fn row_mut(&mut self, layer: usize, slot: usize) -> &mut [f32] {
        let width = self.layout.layers[layer].width;
        &mut self.layers[layer][slot * width..(slot + 1) * width]
    }

    fn copy(&mut self, layer: usize, from: Range<usize>, to: usize) {
        let width = self.layout.layers[layer].width;
        self.layers[layer].copy_within(from.start * width..from.end * width, to * width);
    }
}

impl KvStore for HostKvStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let (from, to) = (from as usize * KV_BLOCK, to as usize * KV_BLOCK);
        (0..self.layers.len()).for_each(|layer| self.copy(layer, from..from + KV_BLOCK, to));
        Ok(())
    }

    fn read_row(&self, layer: usize, slot: usize, row: &mut [u8]) -> Result<(), BackendError> {
        for (bytes, element) in row.chunks_exact_mut(4).zip(self.row(layer, slot)) {
            bytes.copy_from_slice(&element.to_le_bytes());
        }
        Ok(())
    }

    fn write_row(&mut self, layer: usize, slot: usize, row: &[u8]) -> Result<(), BackendError> {
        for (element, bytes) in self.row_mut(layer, slot).iter_mut().zip(row.chunks_exact(4)) {
            *element = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        let Some(rotation) = self.rotation.clone() else { return Ok(()) };
        for layer in 0..self.layers.len() {
            self.copy(layer, from..from + 1, to);
            let kind = self.layout.layers[layer].kind;
            let row = self.row_mut(layer, to);
            let (nope, rope, v) = (rotation.nope, rotation.rope, rotation.v);
            match kind {
                KvLayerKind::Latent => {
                    let content = row.len() - rope;
                    rotation.shift(&mut row[content..], distance);
                }
                KvLayerKind::Expanded => {
                    for head in row.chunks_exact_mut(nope + rope + v) {
                        rotation.shift(&mut head[nope..nope + rope], distance);
                    }
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
