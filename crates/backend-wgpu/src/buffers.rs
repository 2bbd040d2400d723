//! Memory of the device.

use crate::device::Device;
use crate::error::GpuError;
use crate::ready;
use crate::shader_binding::ShaderBinding;
use std::ops::Range;
use std::sync::{Arc, mpsc};

/// Bytes that are on their way to the device at a time: the driver keeps a copy of them.
const PIECE: usize = 32 << 20;

/// A buffer that shaders read and write.
pub(crate) struct Buffer {
    pub(crate) raw: wgpu::Buffer,
    bytes: u64,
    device: Arc<Device>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.device.call_cache().0.forget(&self.raw);
        self.device.released(self.bytes);
    }
}

impl Buffer {
    /// A buffer of zeros, a multiple of 4 bytes long and no shorter than asked for. Shaders see all of it.
    pub(crate) fn new(device: &Arc<Device>, what: &str, bytes: u64) -> Result<Buffer, GpuError> {
        let most = largest_binding(&device.limits);
        let bytes = whole(bytes);
        if bytes > most {
            let (device, what) = (device.name().to_owned(), what.to_owned());
            return Err(GpuError::TooLarge { device, what, bytes, most });
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor {
            label: Some(what),
            size: if device.hollow { 16 } else { bytes },
            usage,
            mapped_at_creation: false,
        };
        let raw = device.memory(what, bytes, || device.raw.create_buffer(&descriptor))?;
        Ok(Buffer { raw, bytes, device: Arc::clone(device) })
    }

    /// A buffer with this content; what is missing at its end to a multiple of 4 is zero.
    pub(crate) fn with(device: &Arc<Device>, what: &str, content: &[u8]) -> Result<Buffer, GpuError> {
        let buffer = Buffer::new(device, what, content.len() as u64)?;
        buffer.write(what, 0, content)?;
        Ok(buffer)
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Writes bytes from `at` on, a multiple of 4; those up to the next multiple of 4 become zero.
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
                // frees the driver's copy
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

    /// Reads bytes, whose range is one of whole words, when the device has done all that it was given.
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
    /// Some bytes of a buffer, from a multiple of 256 on.
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
    bytes.max(16).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT)
}

/// The longest piece of a buffer that a shader sees, which is as long as buffers are made.
pub(crate) fn largest_binding(limits: &wgpu::Limits) -> u64 {
    let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    // shaders count bytes with 32 bits, and Metal's, whose buffers may be longer, are told the size of a binding so: with a longer one they would read other
    // rows. Elements, which have four bytes at least or are counted in words, are fewer still.
    most.min(u32::MAX.into()) / 256 * 256
}

/// Memory that the host reads and the device copies results into.
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

    /// Its length.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Has the device copy a range of whole words to `at`.
    pub(crate) fn copy(&self, encoder: &mut wgpu::CommandEncoder, from: &Buffer, range: Range<u64>, at: u64) {
        encoder.copy_buffer_to_buffer(&from.raw, range.start, &self.raw, at, range.end - range.start);
    }

    /// The same with the first bytes of a buffer that no shader sees.
    pub(crate) fn copy_raw(&self, encoder: &mut wgpu::CommandEncoder, from: &wgpu::Buffer, bytes: u64) {
        encoder.copy_buffer_to_buffer(from, 0, &self.raw, 0, bytes);
    }

    /// The first bytes, once all that was submitted is done.
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
        let (answers, answer) = mpsc::channel();
        self.device.checked(what, || {
            // the receiver is dropped if waiting failed
            self.raw.map_async(wgpu::MapMode::Read, 0..bytes, move |result| drop(answers.send(result)));
        })?;
        self.device.wait()?;
        match ready::heard(&answer) {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(refused(error.to_string())),
            None => return Err(refused("the device did not hand out its results".into())),
        }
        let taken = {
            let view = self.raw.get_mapped_range(0..bytes).map_err(|error| refused(error.to_string()))?;
            take(&view)
        };
        self.raw.unmap();
        Ok(taken)
    }
}

/// f32 as the device stores them.
pub(crate) fn float_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// u32 as the device stores them.
pub(crate) fn word_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Elements of bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|element| f32::from_le_bytes(*element)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_binding_is_longer_than_shaders_can_count() {
        // as Metal on a machine with 64 GiB
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
