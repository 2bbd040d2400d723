//! Device memory: buffers for shaders, and readback buffers for the host.

use crate::device::Device;
use crate::error::GpuError;
use crate::ready;
use crate::shader_binding::ShaderBinding;
use std::ops::Range;
use std::sync::{Arc, mpsc};

/// Maximum bytes of an upload in flight. The driver holds a copy of them in host memory.
const PIECE: usize = 32 << 20;

/// A buffer that shaders read and write.
pub(crate) struct Buffer {
    pub(crate) raw: wgpu::Buffer,
    bytes: u64,
    device: Arc<Device>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A cached bind group would keep the memory alive.
        self.device.call_cache().0.forget(&self.raw);
        self.device.released(self.bytes);
    }
}

impl Buffer {
    /// Creates a buffer of zeros with at least `bytes` bytes, a multiple of 4. `what` names it in
    /// errors.
    pub(crate) fn new(device: &Arc<Device>, what: &str, bytes: u64) -> Result<Buffer, GpuError> {
        // Shaders bind a buffer as a whole, so it must fit one binding.
        let most = largest_binding(&device.limits);
        let bytes = whole(bytes);
        if bytes > most {
            let (device, what) = (device.name().to_owned(), what.to_owned());
            return Err(GpuError::TooLarge { device, what, bytes, most });
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor {
            label: Some(what),
            // A hollow buffer stores nothing. 16 bytes are enough to bind it (see `whole`).
            size: if device.hollow { 16 } else { bytes },
            usage,
            mapped_at_creation: false,
        };
        let raw = device.memory(what, bytes, || device.raw.create_buffer(&descriptor))?;
        Ok(Buffer { raw, bytes, device: Arc::clone(device) })
    }

    /// Creates a buffer with this content, padded with zeros to a multiple of 4 bytes.
    pub(crate) fn with(device: &Arc<Device>, what: &str, content: &[u8]) -> Result<Buffer, GpuError> {
        let buffer = Buffer::new(device, what, content.len() as u64)?;
        buffer.write(what, 0, content)?;
        Ok(buffer)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Writes `content` at the offset `at`, a multiple of 4, padded with zeros to a multiple of 4
    /// bytes.
    pub(crate) fn write(&self, what: &str, at: u64, content: &[u8]) -> Result<(), GpuError> {
        if self.device.hollow {
            return Ok(());
        }
        let (whole, rest) = content.split_at(content.len() / 4 * 4);
        let queue = &self.device.queue;
        let mut offset = at;
        for piece in whole.chunks(PIECE) {
            self.device.checked(what, || queue.write_buffer(&self.raw, offset, piece))?;
            offset += piece.len() as u64;
            if piece.len() == PIECE {
                // Frees the driver's copy: wgpu uploads pending writes with the next submission.
                queue.submit([]);
                self.device.wait()?;
            }
        }
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.device.checked(what, || queue.write_buffer(&self.raw, offset, &last))?;
        }
        Ok(())
    }

    /// Reads a range of whole words, after the device has completed all submissions.
    pub(crate) fn read(&self, what: &str, range: Range<u64>) -> Result<Vec<u8>, GpuError> {
        let reader = Readback::new(&self.device, range.end - range.start)?;
        let device = &self.device;
        device.checked(what, || {
            let mut encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            reader.copy(&mut encoder, self, range.clone(), 0);
            device.queue.submit([encoder.finish()])
        })?;
        reader.read(what, range.end - range.start, <[u8]>::to_vec)
    }
}

impl ShaderBinding {
    /// A byte range of a buffer. The start is a multiple of 256.
    pub(crate) fn part(buffer: &Buffer, range: Range<u64>) -> ShaderBinding {
        ShaderBinding::new(buffer.raw.clone(), range)
    }
}

impl From<&Buffer> for ShaderBinding {
    fn from(buffer: &Buffer) -> ShaderBinding {
        ShaderBinding::part(buffer, 0..buffer.bytes())
    }
}

/// Size of a buffer for `bytes` bytes, rounded up.
pub(crate) fn whole(bytes: u64) -> u64 {
    // 16: a binding must not be empty, and a shader may declare an array of vec4.
    bytes.max(16).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT)
}

/// Maximum bytes of a binding. Buffers are not larger than this.
pub(crate) fn largest_binding(limits: &wgpu::Limits) -> u64 {
    let max = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    // Shaders count bytes in u32. On Metal, whose buffers may be larger, the size of a binding is
    // also passed as u32: with a larger binding, shaders would read wrong rows. Element counts are
    // smaller still, since elements have at least four bytes or are counted in words. A multiple of
    // 256, so that parts of a buffer can be bound.
    max.min(u32::MAX.into()) / 256 * 256
}

/// A buffer into which the device copies results for the host.
pub(crate) struct Readback {
    raw: wgpu::Buffer,
    bytes: u64,
    device: Arc<Device>,
}

impl Drop for Readback {
    fn drop(&mut self) {
        self.device.released(self.bytes);
    }
}

impl Readback {
    /// Allocates a readback buffer of at least `bytes` bytes.
    pub(crate) fn new(device: &Arc<Device>, bytes: u64) -> Result<Readback, GpuError> {
        let bytes = whole(bytes);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let descriptor =
            wgpu::BufferDescriptor { label: Some("results"), size: bytes, usage, mapped_at_creation: false };
        let raw = device.memory("memory for results", bytes, || device.raw.create_buffer(&descriptor))?;
        Ok(Readback { raw, bytes, device: Arc::clone(device) })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records a copy of a range of whole words to the offset `at`.
    pub(crate) fn copy(&self, encoder: &mut wgpu::CommandEncoder, from: &Buffer, range: Range<u64>, at: u64) {
        encoder.copy_buffer_to_buffer(&from.raw, range.start, &self.raw, at, range.end - range.start);
    }

    /// Records a copy of the first bytes of a buffer that shaders do not use.
    pub(crate) fn copy_raw(&self, encoder: &mut wgpu::CommandEncoder, from: &wgpu::Buffer, bytes: u64) {
        encoder.copy_buffer_to_buffer(from, 0, &self.raw, 0, bytes);
    }

    /// Waits until all submissions are complete and passes the first `bytes` bytes to `take`.
    pub(crate) fn read<T>(
        &self,
        what: &str,
        bytes: u64,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, GpuError> {
        let refused = |problem: String| GpuError::Refused {
            device: self.device.name().to_owned(),
            what: what.to_owned(),
            problem,
        };
        if bytes == 0 {
            return Ok(take(&[]));
        }
        let (sender, receiver) = mpsc::channel();
        self.device.checked(what, || {
            // A failed send is ignored: the receiver is dropped if waiting fails.
            self.raw.map_async(wgpu::MapMode::Read, 0..bytes, move |result| drop(sender.send(result)));
        })?;
        self.device.wait()?;
        match ready::received(&receiver) {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(refused(error.to_string())),
            None => return Err(refused("the device did not map its results".into())),
        }
        // The view must be dropped before `unmap`.
        let taken = {
            let view = self.raw.get_mapped_range(0..bytes).map_err(|error| refused(error.to_string()))?;
            take(&view)
        };
        // A mapped buffer cannot be the destination of a later copy.
        self.raw.unmap();
        Ok(taken)
    }
}

/// The bytes of f32 values on the device.
pub(crate) fn float_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The bytes of u32 values on the device.
pub(crate) fn word_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The f32 values in bytes from the device.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|element| f32::from_le_bytes(*element)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_fit_the_range_of_u32_in_shaders() {
        // Metal's limits on a machine with 64 GiB.
        let limits = wgpu::Limits {
            max_storage_buffer_binding_size: 48 << 30,
            max_buffer_size: 48 << 30,
            ..wgpu::Limits::default()
        };
        assert_eq!(largest_binding(&limits), (4 << 30) - 256);
        let small = wgpu::Limits { max_storage_buffer_binding_size: (128 << 20) + 4, ..limits };
        assert_eq!(largest_binding(&small), 128 << 20);
    }
}
