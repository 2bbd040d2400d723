//! Timestamps of the device's clock at the beginning and end of compute passes.

use crate::buffers::Readback;
use crate::device::Device;
use crate::error::GpuError;
use std::sync::Arc;

/// Queries per query set: the maximum that wgpu allows.
const QUERIES: u32 = wgpu::QUERY_SET_MAX_QUERIES;

/// Times of the passes of one list.
pub(crate) struct PassTimestamps {
    /// Two queries per pass.
    sets: Vec<wgpu::QuerySet>,
    /// The number to which the time of each pass is added.
    passes: Vec<usize>,
    resolved: wgpu::Buffer,
    results: Readback,
    /// Nanoseconds per tick.
    period: f64,
}

impl PassTimestamps {
    /// Allocates timestamps for `passes` passes.
    pub(crate) fn new(device: &Arc<Device>, passes: usize) -> Result<PassTimestamps, GpuError> {
        let (each, sets) = (QUERIES as usize / 2, passes.div_ceil(QUERIES as usize / 2).max(1));
        let bytes = u64::from(QUERIES * wgpu::QUERY_SIZE) * sets as u64;
        let descriptor = wgpu::QuerySetDescriptor {
            label: Some("times of passes"),
            ty: wgpu::QueryType::Timestamp,
            count: QUERIES.min(2 * passes.clamp(1, each) as u32),
        };
        let resolved = wgpu::BufferDescriptor {
            label: Some("times of passes"),
            size: bytes,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        let (sets, resolved) = device.checked("timestamps", || {
            let sets = (0..sets).map(|_| device.raw.create_query_set(&descriptor)).collect();
            (sets, device.raw.create_buffer(&resolved))
        })?;
        let period = device.queue.get_timestamp_period().into();
        Ok(PassTimestamps {
            sets,
            passes: Vec::new(),
            resolved,
            results: Readback::new(device, bytes)?,
            period,
        })
    }

    /// The timestamps of the next pass, whose time is added to `number`. None if the passes exceed
    /// the allocated number.
    pub(crate) fn pass(&mut self, number: usize) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let each = QUERIES as usize / 2;
        // A set has a limited number of queries, so that passes are spread over several sets.
        let query_set = self.sets.get(self.passes.len() / each)?;
        let first = 2 * (self.passes.len() % each) as u32;
        self.passes.push(number);
        Some(wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: Some(first),
            end_of_pass_write_index: Some(first + 1),
        })
    }

    /// Records the copy of the times to the readback buffer.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let passes = self.passes.chunks(QUERIES as usize / 2);
        for (i, (set, passes)) in self.sets.iter().zip(passes).enumerate() {
            let at = i as u64 * u64::from(QUERIES * wgpu::QUERY_SIZE);
            encoder.resolve_query_set(set, 0..2 * passes.len() as u32, &self.resolved, at);
        }
        // All sets but the last are full, so the times are contiguous.
        if !self.passes.is_empty() {
            self.results.copy_raw(encoder, &self.resolved, self.bytes());
        }
    }

    /// Bytes of the times of all passes.
    fn bytes(&self) -> u64 {
        2 * u64::from(wgpu::QUERY_SIZE) * self.passes.len() as u64
    }

    /// Waits for the passes, and returns (number, nanoseconds) of each.
    pub(crate) fn nanos(&self) -> Result<Vec<(usize, u64)>, GpuError> {
        let ticks: Vec<u64> = self.results.read("times of passes", self.bytes(), |bytes| {
            bytes.as_chunks().0.iter().map(|tick| u64::from_le_bytes(*tick)).collect()
        })?;
        let pairs = ticks.as_chunks::<2>().0.iter();
        // Saturating: WebGPU allows the clock to be reset between two timestamps.
        let nanos = pairs.map(|[start, end]| (end.saturating_sub(*start) as f64 * self.period) as u64);
        Ok(self.passes.iter().copied().zip(nanos).collect())
    }
}
