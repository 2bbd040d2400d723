//! The KV cache of an offloaded model. Each backend stores the rows of its own layers.

use latent_backend::{BackendError, KvLayout, KvStore};
use std::any::Any;

/// The stores of both sides as one. Both have the same block numbers.
pub(super) struct OffloadedStore {
    pub(super) front: Box<dyn KvStore>,
    pub(super) back: Box<dyn KvStore>,
    /// The layout of all layers, those of the front first.
    layout: KvLayout,
}

impl OffloadedStore {
    pub(super) fn new(front: Box<dyn KvStore>, back: Box<dyn KvStore>) -> OffloadedStore {
        let layers = front.layout().layers.iter().chain(&back.layout().layers).cloned().collect();
        let layout = KvLayout { layers, ..back.layout().clone() };
        OffloadedStore { front, back, layout }
    }

    /// The number of layers with an entry in the front's store.
    fn cut(&self) -> usize {
        self.front.layout().layers.len()
    }
}

impl KvStore for OffloadedStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.front.copy_block(from, to)?;
        self.back.copy_block(from, to)
    }

    fn read_rows(&self, layer: usize, first: usize, rows: &mut [u8]) -> Result<(), BackendError> {
        match layer.checked_sub(self.cut()) {
            None => self.front.read_rows(layer, first, rows),
            Some(layer) => self.back.read_rows(layer, first, rows),
        }
    }

    fn write_rows(&mut self, layer: usize, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        match layer.checked_sub(self.cut()) {
            None => self.front.write_rows(layer, first, rows),
            Some(layer) => self.back.write_rows(layer, first, rows),
        }
    }

    fn read_state(&self, layer: usize, slot: u32, state: &mut [u8]) -> Result<(), BackendError> {
        match layer.checked_sub(self.cut()) {
            None => self.front.read_state(layer, slot, state),
            Some(layer) => self.back.read_state(layer, slot, state),
        }
    }

    fn write_state(&mut self, layer: usize, slot: u32, state: &[u8]) -> Result<(), BackendError> {
        match layer.checked_sub(self.cut()) {
            None => self.front.write_state(layer, slot, state),
            Some(layer) => self.back.write_state(layer, slot, state),
        }
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        self.front.shift_token(from, to, distance)?;
        self.back.shift_token(from, to, distance)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
