//! [`StageRun`], the context in which operations record their calls, and the operations' trait.

use crate::buffers::Buffer;
use crate::commands::{Commands, ShaderBinding};
use crate::error::GpuError;
use crate::kv_store::GpuKvStore;
use crate::matmul::rows::BufferRows;
use crate::memory::ModelBuffers;
use crate::step_data::StepData;
use crate::values::ShaderOperand;
use latent_backend::Batch;
use latent_graph::ir::AttentionPath;
use latent_types::Arithmetic;
use std::ops::Range;

/// A step of one stage.
pub(crate) struct StageRun<'r> {
    pub(crate) commands: &'r mut Commands,
    pub(crate) memory: &'r ModelBuffers,
    pub(crate) kv: &'r GpuKvStore,
    pub(crate) batch: &'r Batch,
    pub(crate) step: &'r StepData,
    pub(crate) step_buffer: &'r Buffer,
    /// Rows that the host uploads: looked-up tokens, or embeddings.
    pub(crate) embedded: &'r Buffer,
    /// Number of rows that the stage works on: the batch's, or some of those whose logits are
    /// wanted.
    pub(crate) rows: usize,
    /// In a head's stage, the indices of its rows in `batch.wanted`.
    pub(crate) wanted: Option<Range<usize>>,
    /// Index of the plan's first KV layer in the cache.
    pub(crate) first_kv_layer: usize,
}

impl StageRun<'_> {
    /// The buffer of a value.
    pub(crate) fn bind(&self, operand: &ShaderOperand) -> ShaderBinding {
        ShaderBinding::from(self.memory.of(operand.home))
    }

    /// The rows of a value from `first` on, as an input or output of products.
    pub(crate) fn matrix(&self, operand: &ShaderOperand, first: usize) -> BufferRows {
        let stride = operand.row_stride as usize;
        BufferRows { binding: self.bind(operand), first: operand.offset as usize + first * stride, stride }
    }

    /// The position of a row of the stage in its sequence.
    pub(crate) fn position(&self, row: usize) -> usize {
        // A head's stage has only wanted rows, which may be any rows of the batch.
        let of_batch = match &self.wanted {
            Some(wanted) => self.batch.wanted[wanted.start + row] as usize,
            None => row,
        };
        self.batch.positions[of_batch]
    }

    /// The buffers of attention with queries `q` and results `y`.
    pub(crate) fn queries(&self, q: &ShaderOperand, y: &ShaderOperand) -> AttentionQueries {
        AttentionQueries {
            step: self.step_buffer.into(),
            scales: self.step.scales,
            q: (self.bind(q), q.address()),
            y: (self.bind(y), y.address()),
        }
    }

    /// The rows on this attention path.
    pub(crate) fn ranges(&self, path: AttentionPath) -> Vec<Range<usize>> {
        ranges(self.batch, self.rows, path)
    }
}

/// The buffers of queries and results of attention.
pub(crate) struct AttentionQueries {
    /// The data of the step.
    pub(crate) step: ShaderBinding,
    /// Index of the rows' score scales in `step`.
    pub(crate) scales: u32,
    /// Queries with their offset, row stride and head stride.
    pub(crate) q: (ShaderBinding, [u32; 3]),
    /// Results with their offset, row stride and head stride.
    pub(crate) y: (ShaderBinding, [u32; 3]),
}

/// The ranges of the `rows` rows that are on a path.
pub(crate) fn ranges(batch: &Batch, rows: usize, path: AttentionPath) -> Vec<Range<usize>> {
    match path {
        // Not the spans of the batch: a head's stage has only some of its rows.
        AttentionPath::All => std::iter::once(0..rows).collect(),
        path => batch.ranges_in(path).collect(),
    }
}

/// A compiled operation of a plan.
pub(crate) trait GpuOperation: Send {
    /// Records its calls for the rows on its path.
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError>;

    /// Number of parts that may be submitted separately. Several if all calls together may take
    /// seconds: drivers reset a device that works on one submission for so long.
    fn parts(&self, _step: &StepData, _rows: (&Batch, usize), _path: AttentionPath) -> usize {
        1
    }

    /// Records the calls of one part.
    fn record_part(&self, run: &mut StageRun<'_>, path: AttentionPath, _part: usize) -> Result<(), GpuError> {
        self.record(run, path)
    }

    /// The arithmetic that most of its products use for `_rows` rows.
    fn arithmetic(&self, _rows: usize) -> Arithmetic {
        Arithmetic::F32
    }
}

/// An operation that runs in passes, each of which can be submitted separately.
pub(crate) trait MultiPass: Send {
    /// The work of one pass.
    type ExpansionPass<'s>;

    /// The passes of a step for a batch and its number of rows, in order.
    fn passes<'s>(
        &'s self,
        step: &'s StepData,
        rows: (&Batch, usize),
        path: AttentionPath,
    ) -> impl Iterator<Item = Self::ExpansionPass<'s>>;

    /// Records the calls of one pass.
    fn record_pass(
        &self,
        run: &mut StageRun<'_>,
        path: AttentionPath,
        pass: Self::ExpansionPass<'_>,
    ) -> Result<(), GpuError>;

    /// See [`GpuOperation::arithmetic`].
    fn arithmetic(&self, _rows: usize) -> Arithmetic {
        Arithmetic::F32
    }
}

impl<T: MultiPass> GpuOperation for T {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let (step, rows) = (run.step, (run.batch, run.rows));
        self.passes(step, rows, path).try_for_each(|pass| self.record_pass(run, path, pass))
    }

    fn parts(&self, step: &StepData, rows: (&Batch, usize), path: AttentionPath) -> usize {
        // At least one, because the work of the operation is divided by it.
        self.passes(step, rows, path).count().max(1)
    }

    fn record_part(&self, run: &mut StageRun<'_>, path: AttentionPath, part: usize) -> Result<(), GpuError> {
        let (step, rows) = (run.step, (run.batch, run.rows));
        // An operation without passes has one part too, which records nothing.
        self.passes(step, rows, path).nth(part).map_or(Ok(()), |pass| self.record_pass(run, path, pass))
    }

    fn arithmetic(&self, rows: usize) -> Arithmetic {
        MultiPass::arithmetic(self, rows)
    }
}
