//! Context for recording an operation's calls.

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
    /// Rows of the embedding, or those that came in their place.
    pub(crate) embedded: &'r Buffer,
    /// Rows that the stage works on: the batch's, or some of those whose logits are wanted.
    pub(crate) rows: usize,
    /// Of a head's stage, which of those.
    pub(crate) wanted: Option<Range<usize>>,
    /// Where the cache has the first KV layer of the plan.
    pub(crate) first_kv_layer: usize,
}

impl StageRun<'_> {
    /// The buffer of a value.
    pub(crate) fn bind(&self, operand: &ShaderOperand) -> ShaderBinding {
        ShaderBinding::from(self.memory.of(operand.home))
    }

    /// The rows of a value from `first` on, as products take them.
    pub(crate) fn matrix(&self, operand: &ShaderOperand, first: usize) -> BufferRows {
        let stride = operand.row_stride as usize;
        BufferRows { binding: self.bind(operand), first: operand.offset as usize + first * stride, stride }
    }

    pub(crate) fn position(&self, row: usize) -> usize {
        let of_batch = match &self.wanted {
            Some(wanted) => self.batch.wanted[wanted.start + row] as usize,
            None => row,
        };
        self.batch.positions[of_batch]
    }

    /// What attention of queries `q` reads of a step, and where its results `y` go.
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

/// Queries of attention, and their results.
pub(crate) struct AttentionQueries {
    /// The words of a step.
    pub(crate) step: ShaderBinding,
    /// Where the factors on scores stand in it.
    pub(crate) scales: u32,
    /// Queries, and where the heads of a row are: offset, row stride, head stride.
    pub(crate) q: (ShaderBinding, [u32; 3]),
    /// Results, in the same words.
    pub(crate) y: (ShaderBinding, [u32; 3]),
}

/// The ranges of the `rows` rows that are on a path.
pub(crate) fn ranges(batch: &Batch, rows: usize, path: AttentionPath) -> Vec<Range<usize>> {
    match path {
        AttentionPath::All => std::iter::once(0..rows).collect(),
        path => batch.ranges_in(path).collect(),
    }
}

/// One operation of a plan, compiled.
pub(crate) trait GpuOperation: Send {
    /// Adds its calls for the rows on its path.
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError>;

    /// In how many parts the device may get its calls: several where they may take seconds together.
    fn parts(&self, _step: &StepData, _rows: (&Batch, usize), _path: AttentionPath) -> usize {
        1
    }

    /// Adds the calls of one of these parts.
    fn record_part(&self, run: &mut StageRun<'_>, path: AttentionPath, _part: usize) -> Result<(), GpuError> {
        self.record(run, path)
    }

    /// The arithmetic of most of its products for `_rows` rows.
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

    /// Adds the calls of one pass.
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
        self.passes(step, rows, path).count().max(1)
    }

    fn record_part(&self, run: &mut StageRun<'_>, path: AttentionPath, part: usize) -> Result<(), GpuError> {
        let (step, rows) = (run.step, (run.batch, run.rows));
        self.passes(step, rows, path).nth(part).map_or(Ok(()), |pass| self.record_pass(run, path, pass))
    }

    fn arithmetic(&self, rows: usize) -> Arithmetic {
        MultiPass::arithmetic(self, rows)
    }
}
