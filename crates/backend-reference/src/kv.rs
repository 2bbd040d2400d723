//! A KV cache in plain memory.

use latent_backend::{BackendError, KV_BLOCK, KvLayout, KvStore, LayerState, Rotation};
use latent_graph::ir::KvLayerKind;
use latent_types::CacheType;
use std::any::Any;
use std::ops::Range;

/// Rows of f32, addressed by block tables, and recurrent states.
pub struct HostKvStore {
    layout: KvLayout,
    layers: Vec<Vec<f32>>,
    rotation: Option<Rotation>,
}

impl HostKvStore {
    /// Creates a cache of zeros.
    ///
    /// # Panics
    /// If the layout stores another type than f32.
    pub fn new(layout: KvLayout) -> HostKvStore {
        assert_eq!(layout.cache_type, CacheType::F32, "the reference backend supports only an f32 KV cache");
        let elements = |layer: &LayerState| match layer {
            LayerState::PerToken(rows) => layout.slots() * rows.width,
            LayerState::Recurrent(state) => layout.state_slots as usize * state.shape.elements(),
        };
        let layers = layout.layers.iter().map(|layer| vec![0.0; elements(layer)]).collect();
        HostKvStore { layout, layers, rotation: None }
    }

    /// Like [`new`](Self::new), but with the rotation of a model, so that contexts can be shifted.
    /// Cached keys are already rotated, so a shift has to rotate them further.
    pub(super) fn of_model(layout: KvLayout, rotation: Rotation) -> HostKvStore {
        HostKvStore { rotation: Some(rotation), ..HostKvStore::new(layout) }
    }

    /// A cached row: `[latent | rotated key]`, or `[key | rotated key | value]` of each head.
    pub(super) fn row(&self, layer: usize, slot: usize) -> &[f32] {
        &self.layers[layer][self.record(layer, slot)]
    }

    pub(super) fn row_mut(&mut self, layer: usize, slot: usize) -> &mut [f32] {
        let record = self.record(layer, slot);
        &mut self.layers[layer][record]
    }

    /// The state of a recurrent layer.
    pub(super) fn state(&self, layer: usize, slot: u32) -> &[f32] {
        self.row(layer, slot as usize)
    }

    pub(super) fn state_mut(&mut self, layer: usize, slot: u32) -> &mut [f32] {
        self.row_mut(layer, slot as usize)
    }

    /// The index of the first of the last `count` layers.
    pub(super) fn last_layers(&self, count: usize) -> usize {
        self.layers.len().saturating_sub(count)
    }

    /// The range of elements of one row or one state.
    fn record(&self, layer: usize, slot: usize) -> Range<usize> {
        let width = match &self.layout.layers[layer] {
            LayerState::PerToken(rows) => rows.width,
            LayerState::Recurrent(state) => state.shape.elements(),
        };
        slot * width..(slot + 1) * width
    }

    fn layers_with_rows(&self) -> Vec<(usize, KvLayerKind)> {
        let layers = self.layout.layers.iter().enumerate();
        layers.filter_map(|(index, layer)| Some((index, layer.per_token()?.kind))).collect()
    }

    fn copy(&mut self, layer: usize, from: Range<usize>, to: usize) {
        let from = self.record(layer, from.start).start..self.record(layer, from.end).start;
        let to = self.record(layer, to).start;
        self.layers[layer].copy_within(from, to);
    }
}

impl KvStore for HostKvStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let (from, to) = (from as usize * KV_BLOCK, to as usize * KV_BLOCK);
        // Recurrent states are not in blocks.
        for (layer, _) in self.layers_with_rows() {
            self.copy(layer, from..from + KV_BLOCK, to);
        }
        Ok(())
    }

    fn read_rows(&self, layer: usize, first: usize, rows: &mut [u8]) -> Result<(), BackendError> {
        let bytes = self.layout().row(layer).bytes();
        for (slot, row) in (first..).zip(rows.chunks_exact_mut(bytes)) {
            write_elements(self.row(layer, slot), row);
        }
        Ok(())
    }

    fn write_rows(&mut self, layer: usize, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        let bytes = self.layout().row(layer).bytes();
        for (slot, row) in (first..).zip(rows.chunks_exact(bytes)) {
            read_elements(row, self.row_mut(layer, slot));
        }
        Ok(())
    }

    fn read_state(&self, layer: usize, slot: u32, state: &mut [u8]) -> Result<(), BackendError> {
        write_elements(self.state(layer, slot), state);
        Ok(())
    }

    fn write_state(&mut self, layer: usize, slot: u32, state: &[u8]) -> Result<(), BackendError> {
        read_elements(state, self.state_mut(layer, slot));
        Ok(())
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        let Some(rotation) = self.rotation.clone() else { return Ok(()) };
        for (layer, kind) in self.layers_with_rows() {
            self.copy(layer, from..from + 1, to);
            let row = self.row_mut(layer, to);
            let (nope, rope, v) = (rotation.nope, rotation.rope, rotation.v);
            match kind {
                // Only the end of a row is rotated; a latent does not depend on its position.
                KvLayerKind::Latent => {
                    let content = row.len() - rope;
                    rotation.shift(&mut row[content..], distance);
                }
                KvLayerKind::Index => rotation.shift_index(row, distance),
                // States have no positions.
                KvLayerKind::ConvInputs | KvLayerKind::DeltaState => {}
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

fn write_elements(elements: &[f32], bytes: &mut [u8]) {
    for (bytes, element) in bytes.chunks_exact_mut(4).zip(elements) {
        bytes.copy_from_slice(&element.to_le_bytes());
    }
}

fn read_elements(bytes: &[u8], elements: &mut [f32]) {
    for (element, bytes) in elements.iter_mut().zip(bytes.chunks_exact(4)) {
        *element = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}
