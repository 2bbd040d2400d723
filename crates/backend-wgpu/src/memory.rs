//! Buffers of a model other than its weights and KV cache.

use crate::buffers::{Buffer, largest_binding, whole};
use crate::device::Device;
use crate::error::GpuError;
use crate::matmul::sort::SortMemory;
use crate::values::ValueBuffer;
use latent_types::Setting;
use std::sync::Arc;

/// Maximum bytes of a scratch buffer, for operations that can split rows or heads into passes.
pub(crate) const SCRATCH: u64 = 32 << 20;

/// Number of scratch buffers.
pub(crate) const SCRATCHES: usize = 4;

/// Largest and smallest buffer in a trial of the free memory.
const TRIAL: (u64, u64) = (256 << 20, 4 << 20);

/// Free device memory, up to `wanted` bytes. wgpu does not report it, so buffers are allocated
/// until an allocation fails, and are then freed.
pub(crate) fn room(device: &Arc<Device>, wanted: u64) -> Result<u64, GpuError> {
    let left = device.memory_limit().saturating_sub(device.in_use());
    // Rounded down to whole words, since buffers are rounded up.
    let wanted = wanted.min(left / 4 * 4);
    if device.hollow {
        return Ok(wanted);
    }
    let (mut taken, mut room) = (Vec::new(), 0);
    // Large buffers first, so that few allocations find most of the memory.
    let mut piece = TRIAL.0.min(largest_binding(&device.limits));
    while room < wanted {
        match Buffer::new(device, "a probe of the available memory", piece.min(wanted - room)) {
            Ok(buffer) => {
                room += buffer.bytes();
                taken.push(buffer);
            }
            Err(GpuError::OutOfMemory { .. }) if piece > TRIAL.1 => piece /= 2,
            Err(GpuError::OutOfMemory { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    drop(taken);
    // Wgpu frees dropped buffers only after the device has completed its submissions.
    device.wait()?;
    Ok(room.min(wanted))
}

/// Sizes of a model's buffers in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct BufferSizes {
    /// Each register.
    pub(crate) registers: Vec<u64>,
    /// The residual stream.
    pub(crate) hidden: u64,
    pub(crate) logits: u64,
    /// The top-k search in logits.
    pub(crate) largest: u64,
    /// Each scratch buffer.
    pub(crate) scratch: [u64; SCRATCHES],
    /// Pairs sorted by expert, and their tiles.
    pub(crate) sorted: [u64; 2],
    /// Quantized inputs.
    pub(crate) quantized: u64,
    /// The data of a step.
    pub(crate) step: u64,
    /// The readback buffer.
    pub(crate) results: u64,
}

impl BufferSizes {
    /// Grows the scratch buffers to at least these sizes.
    pub(crate) fn scratch(&mut self, bytes: [u64; SCRATCHES]) {
        self.scratch.iter_mut().zip(bytes).for_each(|(size, bytes)| *size = bytes.max(*size));
    }

    /// Total bytes.
    pub(crate) fn bytes(&self) -> u64 {
        // `hidden` twice: rows that the host uploads have a buffer of the same size.
        let others = [self.hidden, self.hidden, self.logits, self.step, self.results];
        let buffers = self.registers.iter().chain(&self.scratch).chain(&self.sorted).chain(&others);
        // `reserve` allocates no buffer for 0 bytes. The other buffers have a minimum size.
        let quantized = if self.quantized > 0 { whole(self.quantized) } else { 0 };
        buffers.map(|bytes| whole(*bytes)).sum::<u64>() + quantized + self.largest
    }
}

pub(crate) struct ModelBuffers {
    pub(crate) hidden: Buffer,
    pub(crate) logits: Buffer,
    registers: Vec<Buffer>,
    pub(crate) scratch: [Buffer; SCRATCHES],
    /// Pairs of rows and experts, sorted again for each layer.
    pub(crate) sorted: SortMemory,
}

impl ModelBuffers {
    pub(crate) fn new(device: &Arc<Device>, needs: &BufferSizes) -> Result<ModelBuffers, GpuError> {
        let activations = format!("activations (a smaller {} takes less)", Setting::BatchTokens);
        let buffer = |bytes: u64| Buffer::new(device, &activations, bytes);
        let scratch = |number: usize| buffer(needs.scratch[number]);
        Ok(ModelBuffers {
            hidden: buffer(needs.hidden)?,
            logits: Buffer::new(device, "logits", needs.logits)?,
            registers: needs.registers.iter().map(|bytes| buffer(*bytes)).collect::<Result<_, _>>()?,
            scratch: [scratch(0)?, scratch(1)?, scratch(2)?, scratch(3)?],
            sorted: SortMemory::new(device, needs.sorted)?,
        })
    }

    pub(crate) fn of(&self, home: ValueBuffer) -> &Buffer {
        match home {
            ValueBuffer::Hidden => &self.hidden,
            ValueBuffer::Logits => &self.logits,
            ValueBuffer::Register(register) => &self.registers[register],
            ValueBuffer::Scratch(scratch) => &self.scratch[scratch],
        }
    }
}
