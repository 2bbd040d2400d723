//! The KV cache in device memory.

use crate::buffers::Buffer;
use crate::cache::{CacheShift, copy_rows, no_states};
use crate::commands::{Commands, grid};
use crate::device::Device;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use latent_backend::{BackendError, KV_BLOCK, KvLayout, KvStore, Rotation};
use latent_types::Setting;
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls that are kept back at most: a context shift moves thousands of rows, each by a call for every layer.
const KEPT_BACK: usize = 512;

/// Blocks of rows of every layer, each in a buffer of its own.
pub(crate) struct GpuKvStore {
    layout: KvLayout,
    device: Arc<Device>,
    layers: Vec<KvLayerBuffer>,
    rotation: Rotation,
    /// Copies and shifts that the device has not got yet.
    waiting: Mutex<Commands>,
}

struct KvLayerBuffer {
    buffer: Buffer,
    row_bytes: usize,
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
            let Some(kv_layer) = state.per_token() else {
                return Err(no_states());
            };
            let row_bytes = kv_layer.row(layout.cache_type).bytes();
            let what = format!(
                "the KV cache of layer {} (a smaller {} takes less)",
                kv_layer.layer,
                Setting::Context
            );
            layers.push(KvLayerBuffer {
                buffer: Buffer::new(device, &what, layout.slots() as u64 * row_bytes as u64)?,
                row_bytes,
                copy: copy_rows(device)?,
                shift: CacheShift::new(device, kv_layer, layout.cache_type, rotation)?,
            });
        }
        let waiting = Mutex::new(Commands::new(device));
        Ok(GpuKvStore { layout, device: Arc::clone(device), layers, rotation: rotation.clone(), waiting })
    }

    /// The rows of a layer.
    pub(crate) fn layer(&self, layer: usize) -> &Buffer {
        &self.layers[layer].buffer
    }

    fn waiting(&self) -> MutexGuard<'_, Commands> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands copies and shifts to the device.
    pub(crate) fn flush(&self) -> Result<(), GpuError> {
        let mut waiting = self.waiting();
        match waiting.is_empty() {
            true => Ok(()),
            false => std::mem::replace(&mut *waiting, Commands::new(&self.device)).submit(&[]),
        }
    }

    fn flush_many(&self) -> Result<(), BackendError> {
        let many = self.waiting().len() >= KEPT_BACK;
        if many { Ok(self.flush()?) } else { Ok(()) }
    }
}

impl KvStore for GpuKvStore {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn copy_block(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        for layer in &self.layers {
            let words = (KV_BLOCK * layer.row_bytes / 4) as u32;
            let params = [from * words, to * words, words];
            self.waiting().call(&layer.copy, [(&layer.buffer).into()], &params, grid(words as usize, 256));
        }
        self.flush_many()
    }

    fn read_rows(&self, layer: usize, first: usize, rows: &mut [u8]) -> Result<(), BackendError> {
        self.flush()?;
        let KvLayerBuffer { buffer, row_bytes, .. } = &self.layers[layer];
        let at = (first * row_bytes) as u64;
        rows.copy_from_slice(&buffer.read("rows of the KV cache", at..at + rows.len() as u64)?);
        Ok(())
    }

    fn write_rows(&mut self, layer: usize, first: usize, rows: &[u8]) -> Result<(), BackendError> {
        self.flush()?;
        let KvLayerBuffer { buffer, row_bytes, .. } = &self.layers[layer];
        Ok(buffer.write("rows of the KV cache", (first * row_bytes) as u64, rows)?)
    }

    fn read_state(&self, _layer: usize, _slot: u32, _state: &mut [u8]) -> Result<(), BackendError> {
        Err(no_states())
    }

    fn write_state(&mut self, _layer: usize, _slot: u32, _state: &[u8]) -> Result<(), BackendError> {
        Err(no_states())
    }

    fn shift_token(&mut self, from: usize, to: usize, distance: i64) -> Result<(), BackendError> {
        for layer in &self.layers {
            layer.shift.record(
                &mut self.waiting(),
                &layer.buffer,
                [from, to],
                self.rotation.shift_angles(distance),
            );
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
