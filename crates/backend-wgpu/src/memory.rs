//! Buffers of a model other than those of its weights: what steps compute in.

use crate::buffers::{Buffer, largest_binding};
use crate::device::Device;
use crate::error::GpuError;
use crate::values::Home;
use latent_graph::{LM_HEAD_ROWS, ModelConfig, Stage};
use std::sync::Arc;

/// Bytes of one scratch buffer, at most, where an operation can do its rows or heads in several goes.
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
pub(crate) struct Needs {
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
    /// Whether rows of the embedding are looked up on the host.
    pub(crate) looks_up: bool,
}

impl Needs {
    /// What stages hand on to one another and to the caller.
    pub(crate) fn of(stages: &[Stage], config: &ModelConfig) -> Needs {
        let rows = stages.iter().flat_map(|stage| &stage.plans).map(|plan| plan.max_rows).max();
        let bytes = |rows: usize, width: usize| 4 * rows as u64 * width as u64;
        Needs {
            hidden: bytes(rows.unwrap_or(1), config.hidden_size),
            logits: bytes(LM_HEAD_ROWS, config.vocab_size),
            largest: crate::largest::bytes(config.vocab_size),
            ..Needs::default()
        }
    }

    /// Asks for at least this much of the scratch buffers.
    pub(crate) fn scratch(&mut self, bytes: [u64; SCRATCHES]) {
        self.scratch.iter_mut().zip(bytes).for_each(|(size, bytes)| *size = bytes.max(*size));
    }

    /// All together.
    pub(crate) fn bytes(&self) -> u64 {
        // rows of the embedding wait in as much memory as residual rows take
        self.registers.iter().chain(&self.scratch).sum::<u64>() + 2 * self.hidden + self.logits + self.largest
    }
}

/// The buffers.
pub(crate) struct Memory {
    pub(crate) hidden: Buffer,
    pub(crate) logits: Buffer,
    registers: Vec<Buffer>,
    pub(crate) scratch: [Buffer; SCRATCHES],
}

impl Memory {
    pub(crate) fn new(device: &Arc<Device>, needs: &Needs) -> Result<Memory, GpuError> {
        let buffer =
            |bytes: u64| Buffer::new(device, "activations (a smaller --batch-size takes less)", bytes);
        let scratch = |number: usize| buffer(needs.scratch[number]);
        Ok(Memory {
            hidden: buffer(needs.hidden)?,
            logits: buffer(needs.logits)?,
            registers: needs.registers.iter().map(|bytes| buffer(*bytes)).collect::<Result<_, _>>()?,
            scratch: [scratch(0)?, scratch(1)?, scratch(2)?, scratch(3)?],
        })
    }

    /// The buffer of a value.
    pub(crate) fn of(&self, home: Home) -> &Buffer {
        match home {
            Home::Hidden => &self.hidden,
            Home::Logits => &self.logits,
            Home::Register(register) => &self.registers[register],
            Home::Scratch(scratch) => &self.scratch[scratch],
        }
    }
}
