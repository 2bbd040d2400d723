//! Buffers of a model other than those of its weights: what steps compute in.

use crate::buffers::{Buffer, largest_binding, whole};
use crate::device::Device;
use crate::error::GpuError;
use crate::matmul::sort::SortMemory;
use crate::values::ValueBuffer;
use latent_types::Setting;
use std::sync::Arc;

/// Maximum bytes of a scratch buffer, for operations that can split rows or heads into passes.
pub(crate) const SCRATCH: u64 = 32 << 20;

/// Scratch buffers.
pub(crate) const SCRATCHES: usize = 4;

/// Largest and smallest buffer of a trial of how much memory there is.
const TRIAL: (u64, u64) = (256 << 20, 4 << 20);

/// How many of `wanted` bytes the device has room for, which wgpu does not say: they are taken, and given back.
pub(crate) fn room(device: &Arc<Device>, wanted: u64) -> Result<u64, GpuError> {
    let left = device.memory_limit().saturating_sub(device.in_use());
    // buffers are whole words
    let wanted = wanted.min(left / 4 * 4);
    if device.hollow {
        return Ok(wanted);
    }
    let (mut taken, mut room) = (Vec::new(), 0);
    let mut piece = TRIAL.0.min(largest_binding(&device.limits));
    while room < wanted {
        match Buffer::new(device, "a trial of how much memory there is", piece.min(wanted - room)) {
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
    // what the device has done with them is what frees them
    device.wait()?;
    Ok(room.min(wanted))
}

/// What a model's operations need.
#[derive(Clone, Debug, Default)]
pub(crate) struct BufferSizes {
    /// Bytes of each register.
    pub(crate) registers: Vec<u64>,
    /// Bytes of the residual stream.
    pub(crate) hidden: u64,
    /// Bytes of the logits.
    pub(crate) logits: u64,
    /// Bytes of the largest of them.
    pub(crate) largest: u64,
    /// Bytes of each scratch buffer.
    pub(crate) scratch: [u64; SCRATCHES],
    /// Bytes of pairs sorted by expert, and of their tiles.
    pub(crate) sorted: [u64; 2],
    /// Bytes of quantized inputs.
    pub(crate) quantized: u64,
    /// Bytes of what a step tells the shaders of its rows.
    pub(crate) step: u64,
    /// Bytes that the host reads.
    pub(crate) results: u64,
}

impl BufferSizes {
    /// Asks for at least this much of the scratch buffers.
    pub(crate) fn scratch(&mut self, bytes: [u64; SCRATCHES]) {
        self.scratch.iter_mut().zip(bytes).for_each(|(size, bytes)| *size = bytes.max(*size));
    }

    /// All together.
    pub(crate) fn bytes(&self) -> u64 {
        // rows of the embedding wait in as much memory as residual rows take
        let others = [self.hidden, self.hidden, self.logits, self.step, self.results];
        let buffers = self.registers.iter().chain(&self.scratch).chain(&self.sorted).chain(&others);
        let quantized = if self.quantized > 0 { whole(self.quantized) } else { 0 };
        buffers.map(|bytes| whole(*bytes)).sum::<u64>() + quantized + self.largest
    }
}

pub(crate) struct ModelBuffers {
    pub(crate) hidden: Buffer,
    pub(crate) logits: Buffer,
    registers: Vec<Buffer>,
    pub(crate) scratch: [Buffer; SCRATCHES],
    /// Pairs of rows and experts, sorted anew for each layer.
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
