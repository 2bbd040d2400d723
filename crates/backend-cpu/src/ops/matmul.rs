//! The product with one weight matrix, and the conversion of inputs that all workers read.

use crate::context::WorkerContext;
use crate::program::WeightKernel;
use crate::scratch::{ActBuffers, InputFormats, PreparedInput};
use latent_kernels::{MatmulArgs, MatmulScratch, MatrixView, MatrixViewMut, Q8Rows};
use std::ops::Range;

/// Workers' ranges of outputs are cut at multiples of this: the rows of a weight tile, which
/// kernels compute as a whole.
pub(crate) const OUTPUT_UNIT: usize = 16;

/// Outputs between two beats of a rank's pulse, a multiple of [`OUTPUT_UNIT`].
const WATCHED_OUTPUTS: usize = 1024;

/// Minimum number of rows whose inputs the workers convert together. For fewer rows, the two
/// barriers cost more than a conversion by every worker.
const SHARED_ROWS: usize = 16;

/// Operands of a product.
pub(crate) struct MatmulOperands<'a> {
    /// Index of the matrix in the weight.
    pub matrix: usize,
    pub x: &'a PreparedInput<'a>,
    /// The rows of `x` to multiply; all if None.
    pub index: Option<&'a [u32]>,
    /// Rows of the matrix.
    pub outputs: Range<usize>,
}

impl WeightKernel {
    /// Multiplies into `y`, and applies the matrix's scale.
    pub(crate) fn multiply(
        &self,
        ctx: &WorkerContext<'_>,
        operands: MatmulOperands<'_>,
        y: &mut MatrixViewMut<'_>,
        scratch: &mut MatmulScratch,
    ) {
        let MatmulOperands { matrix, x, index, outputs } = operands;
        let weight = &ctx.model.weights[self.weight];
        let (kernel, activation) = self.for_rows(y.rows());
        let (view, input) = (weight.matrix(matrix), x.acts(activation));
        // A product of many rows can take minutes on a slow host. Other ranks would take this rank
        // to hang, so it beats between parts. An output does not depend on the others of its call,
        // so the parts have the bits of the whole.
        let max_outputs = if ctx.is_watched() { WATCHED_OUTPUTS } else { usize::MAX };
        let mut remaining = 0..outputs.len();
        while !remaining.is_empty() {
            let part = remaining.start..remaining.end.min(remaining.start.saturating_add(max_outputs));
            remaining.start = part.end;
            let outputs = outputs.start + part.start..outputs.start + part.end;
            let y = &mut y.columns(part);
            kernel(MatmulArgs { weight: &view, input: &input, row_ids: index, outputs, y }, scratch);
            if !remaining.is_empty() {
                ctx.beat();
            }
        }
        rescale(weight.scale(matrix), y);
    }
}

/// Multiplies results by the scale of their matrix.
pub(crate) fn rescale(scale: f32, y: &mut MatrixViewMut<'_>) {
    if scale != 1.0 {
        for row in 0..y.rows() {
            latent_kernels::scale(y.row_mut(row), scale);
        }
    }
}

/// Converts the input of a product of which all workers compute parts. If there are few rows, each
/// worker converts all of them by itself, which is faster than a barrier. Otherwise each worker
/// converts a share.
pub(crate) fn prepare<'x>(
    ctx: &'x WorkerContext<'_>,
    x: MatrixView<'x>,
    norm: Option<usize>,
    formats: InputFormats,
    acts: &'x mut ActBuffers,
) -> PreparedInput<'x> {
    prepare_some(ctx, x, norm, formats, |_| formats, acts)
}

/// As [`prepare`], for inputs of which kernels read some rows in some of the formats only. If the
/// workers share the conversion, a row is converted to `formats_of_row` instead of all `formats`.
pub(crate) fn prepare_some<'x>(
    ctx: &'x WorkerContext<'_>,
    x: MatrixView<'x>,
    norm: Option<usize>,
    formats: InputFormats,
    formats_of_row: impl Fn(usize) -> InputFormats,
    acts: &'x mut ActBuffers,
) -> PreparedInput<'x> {
    // Shared memory has no buffer for normalized f32 rows.
    if x.rows() < SHARED_ROWS || formats.f32 {
        return acts.prepare(x, ctx.norm(norm), formats);
    }
    let row_blocks = Q8Rows::row_blocks(x.cols());
    let all = |needed: bool| if needed { x.rows() * row_blocks } else { 0 };
    // Other workers may still read the shared buffers for an earlier product of this phase.
    ctx.barrier();
    for row in ctx.worker.share(x.rows(), 1) {
        let (formats, at) = (formats_of_row(row), row * row_blocks);
        // SAFETY: shares of rows are disjoint, and these are the lines of a row in this worker's;
        // the barrier before has ended all reads of them.
        let lines = formats.bf16.then(|| unsafe { ctx.lines_mut(at, row_blocks) });
        // SAFETY: as above, of blocks.
        let blocks = formats.a8.then(|| unsafe { ctx.blocks_mut(at, row_blocks) });
        acts.convert(x.row(row), ctx.norm(norm), lines, blocks);
    }
    ctx.barrier();
    PreparedInput::converted(x, ctx.lines(all(formats.bf16)), ctx.blocks(all(formats.a8)))
}
