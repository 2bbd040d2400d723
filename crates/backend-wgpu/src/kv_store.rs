//! The KV cache in device memory.

use crate::buffers::Buffer;
use crate::cache::{CacheShift, copy_rows};
use crate::commands::{Commands, grid};
use crate::device::Device;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use latent_backend::{BackendError, KV_BLOCK, KvLayout, KvStore, LayerState, Rotation};
use latent_types::Setting;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum pending calls.
const MAX_PENDING: usize = 512;

/// The KV cache: blocks of rows, or recurrent states.
pub(crate) struct GpuKvStore {
    layout: KvLayout,
    device: Arc<Device>,
    // Each layer has its own buffer, so that only a layer must fit the largest binding.
    layers: Vec<KvLayerBuffer>,
    rotation: Rotation,
    /// Copies and shifts that are not submitted yet.
    pending: Mutex<Commands>,
}

struct KvLayerBuffer {
    buffer: Buffer,
    /// Bytes of a row or of a recurrent state.
    bytes: usize,
    /// None for recurrent states.
    rows: Option<RowShaders>,
}

/// Shaders that move rows within a layer.
struct RowShaders {
    copy: Arc<ShaderPipeline>,
    shift: CacheShift,
}

impl GpuKvStore {
    pub(crate) fn new(
        device: &Arc<Device>,
        layout: KvLayout,
        rotation: &Rotation,
    ) -> Result<GpuKvStore, BackendError> {
        let mut layers = Vec::new();
        for state in &layout.layers {
            layers.push(match state {
                LayerState::PerToken(kv_layer) => {
                    let bytes = kv_layer.row(layout.cache_type).bytes();
                    let what = format!(
                        "the KV cache of layer {} (a smaller {} takes less)",
                        kv_layer.layer,
                        Setting::Context
                    );
                    let rows = RowShaders {
                        copy: copy_rows(device)?,
                        shift: CacheShift::new(device, kv_layer, layout.cache_type, rotation)?,
                    };
                    let buffer = Buffer::new(device, &what, layout.slots() as u64 * bytes as u64)?;
                    KvLayerBuffer { buffer, bytes, rows: Some(rows) }
                }
                LayerState::Recurrent(recurrent) => {
                    let bytes = recurrent.shape.bytes();
                    let what = format!(
                        "the recurrent states of layer {} (a smaller {} takes less)",
                        recurrent.layer,
                        Setting::StateCache
                    );
                    // At least one, since a buffer must not be empty.
                    let slots = u64::from(layout.state_slots.max(1));
                    KvLayerBuffer {
                        buffer: Buffer::new(device, &what, slots * bytes as u64)?,
                        bytes,
                        rows: None,
                    }
                }
            });
        }
        let pending = Mutex::new(Commands::new(device));
        Ok(GpuKvStore { layout, device: Arc::clone(device), layers, rotation: rotation.clone(), pending })
    }

    /// The rows or recurrent states of a layer.
    pub(crate) fn layer(&self, layer: usize) -> &Buffer {
        &self.layers[layer].buffer
    }

    fn pending(&self) -> MutexGuard<'_, Commands> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits pending copies and shifts.
    pub(crate) fn flush(&self) -> Result<(), GpuError> {
        let mut pending = self.pending();
        match pending.is_empty() {
            true => Ok(()),
            false => std::mem::replace(&mut *pending, Commands::new(&self.device)).submit(&[]),
        }
    }

    fn read(&self, what: &str, layer: usize, first: usize, found: &mut [u8]) -> Result<(), BackendError> {
        // Pending copies may write the rows.
        self.flush()?;
        let KvLayerBuffer { buffer, bytes, .. } = &self.layers[layer];
        let at = (first * bytes) as u64;
        found.copy_from_slice(&buffer.read(what, at..at + found.len() as u64)?);
        Ok(())
    }

    fn write(&mut self, what: &str, layer: usize, first: usize, new: &[u8]) -> Result<(), BackendError> {
        // Pending copies may read the rows as they are now, or would overwrite the new ones.
        self.flush()?;
        let KvLayerBuffer { buffer, bytes, .. } = &self.layers[layer];
        Ok(buffer.write(what, (first * bytes) as u64, new)?)
    }

    fn flush_many(&self) -> Result<(), BackendError> {
        // A context shift moves thousands of rows, with one call per row and layer. A submission
        // per call would be far slower, and the list would grow without bound if it were never
        // submitted. The lock must be released before `flush` takes it, hence the variable.
        let many = self.pending().len() >= MAX_PENDING;
        if many { Ok(self.flush()?) } else { Ok(()) }
    }
}

impl KvStore for GpuKvStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        for layer in &self.layers {
            // Recurrent states are in slots of their own, not in blocks.
            let Some(rows) = &layer.rows else { continue };
            let words = (KV_BLOCK * layer.bytes / 4) as u32;
            let params = [from * words, to * words, words];
            self.pending().call(&rows.copy, [(&layer.buffer).into()], &params, grid(words as usize, 256));
        }
        self.flush_many()
    }

    fn read_rows(&self, layer: usize, first: usize, rows: &mut [u8]) -> Result<(), BackendError> {
        self.read("rows of the KV cache", layer, first, rows)
    }

    fn write_rows(&mut self, layer: usize, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        self.write("rows of the KV cache", layer, first, rows)
    }

    fn read_state(&self, layer: usize, slot: u32, state: &mut [u8]) -> Result<(), BackendError> {
        self.read("a recurrent state", layer, slot as usize, state)
    }

    fn write_state(&mut self, layer: usize, slot: u32, state: &[u8]) -> Result<(), BackendError> {
        self.write("a recurrent state", layer, slot as usize, state)
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        for layer in &self.layers {
            let Some(rows) = &layer.rows else { continue };
            let angles = self.rotation.shift_angles(distance);
            rows.shift.record(&mut self.pending(), &layer.buffer, [from, to], angles);
        }
        self.flush_many()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
