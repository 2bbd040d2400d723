//! What an operation sees when its calls are recorded.

use crate::buffers::Buffer;
use crate::commands::{Binding, Commands};
use crate::error::GpuError;
use crate::kv_store::GpuKvStore;
use crate::matmul::rows::Matrix;
use crate::memory::Memory;
use crate::step_data::StepData;
use crate::values::Operand;
use latent_backend::Batch;
use latent_graph::ir::AttentionPath;
use latent_types::Arithmetic;
use std::ops::Range;

/// A step of one stage.
pub(crate) struct Run<'r> {
    pub(crate) commands: &'r mut Commands,
    pub(crate) memory: &'r Memory,
    pub(crate) kv: &'r GpuKvStore,
    pub(crate) batch: &'r Batch,
    pub(crate) step: &'r StepData,
    pub(crate) step_buffer: &'r Buffer,
    /// Rows of the embedding, or those that came in their place.
    pub(crate) embedded: &'r Buffer,
    /// Rows that the stage works on: the batch's, or some of those whose logits are wanted.
    pub(crate) rows: usize,
    /// Of a head's stage, which of those.
    pub(crate) wanted: Option<Range<usize>>,
    /// Where the cache has the first KV layer of the plan.
    pub(crate) first_kv_layer: usize,
}

impl Run<'_> {
    /// The buffer of a value.
    pub(crate) fn bind(&self, operand: &Operand) -> Binding {
        Binding::from(self.memory.of(operand.home))
    }

    /// The rows of a value from `first` on, as products take them.
    pub(crate) fn matrix(&self, operand: &Operand, first: usize) -> Matrix {
        let stride = operand.row_stride as usize;
        Matrix { binding: self.bind(operand), first: operand.offset as usize + first * stride, stride }
    }

    /// The position of a row.
    pub(crate) fn position(&self, row: usize) -> usize {
        let of_batch = match &self.wanted {
            Some(wanted) => self.batch.wanted[wanted.start + row] as usize,
            None => row,
        };
        self.batch.positions[of_batch]
    }

    /// The rows on this attention path.
    pub(crate) fn ranges(&self, path: AttentionPath) -> Vec<Range<usize>> {
        ranges(self.batch, self.rows, path)
    }
}

/// The rows on a path, of so many.
pub(crate) fn ranges(batch: &Batch, rows: usize, path: AttentionPath) -> Vec<Range<usize>> {
    match path {
        AttentionPath::All => std::iter::once(0..rows).collect(),
        path => batch.ranges_in(path).collect(),
    }
}

/// One operation of a plan, compiled.
pub(crate) trait Operation: Send {
    /// Adds its calls for the rows on its path.
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError>;

    /// In how many parts the device may get its calls: several where they may take seconds together.
    fn parts(&self, _step: &StepData, _rows: (&Batch, usize), _path: AttentionPath) -> usize {
        1
    }

    /// Adds the calls of one of these parts.
    fn record_part(&self, run: &mut Run<'_>, path: AttentionPath, _part: usize) -> Result<(), GpuError> {
        self.record(run, path)
    }

    /// What most of its products of so many rows are computed in.
    fn arithmetic(&self, _rows: usize) -> Arithmetic {
        Arithmetic::F32
    }
}
