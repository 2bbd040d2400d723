//! One product with one weight matrix, and the preparation of inputs that all workers read.

use crate::context::WorkerContext;
use crate::program::WeightKernel;
use crate::scratch::{ActBuffers, InputFormats, PreparedInput};
use latent_kernels::{MatmulArgs, MatmulScratch, MatrixView, MatrixViewMut, Q8Rows};
use std::ops::Range;

/// Outputs are shared out in multiples of this, the rows of a weight tile.
pub(crate) const OUTPUT_UNIT: usize = 16;

/// Outputs between two beats of a rank's pulse, a multiple of [`OUTPUT_UNIT`].
const WATCHED_OUTPUTS: usize = 1024;

/// Minimum number of rows whose inputs the workers convert together.
const SHARED_ROWS: usize = 16;

/// What a product multiplies: `outputs` rows of one matrix of its weight with the rows of `x` that `index`
/// lists, or all.
pub(crate) struct MatmulOperands<'a> {
    pub matrix: usize,
    pub x: &'a PreparedInput<'a>,
    pub index: Option<&'a [u32]>,
    pub outputs: Range<usize>,
}

impl WeightKernel {
    /// Multiplies into `y`, with the matrix's scale.
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
        // many rows and outputs take minutes on a slow host, of which other ranks hear: each output is the same in whatever company
        let most = if ctx.is_watched() { WATCHED_OUTPUTS } else { usize::MAX };
        let mut rest = 0..outputs.len();
        while !rest.is_empty() {
            let here = rest.start..rest.end.min(rest.start.saturating_add(most));
            rest.start = here.end;
            let outputs = outputs.start + here.start..outputs.start + here.end;
            let y = &mut y.columns(here);
            kernel(MatmulArgs { weight: &view, input: &input, row_ids: index, outputs, y }, scratch);
            if !rest.is_empty() {
                ctx.beat();
            }
        }
        rescale(weight.scale(matrix), y);
    }
}

/// Multiplies results with the scale of their matrix.
pub(crate) fn rescale(scale: f32, y: &mut MatrixViewMut<'_>) {
    if scale != 1.0 {
        for row in 0..y.rows() {
            latent_kernels::scale(y.row_mut(row), scale);
        }
    }
}

/// The input of a product that all workers compute parts of. Each worker converts a few rows for itself,
/// which is quicker than waiting for others at a barrier; many rows are converted together.
pub(crate) fn prepare<'x>(
    ctx: &'x WorkerContext<'_>,
    x: MatrixView<'x>,
    norm: Option<usize>,
    formats: InputFormats,
    acts: &'x mut ActBuffers,
) -> PreparedInput<'x> {
    prepare_some(ctx, x, norm, formats, |_| formats, acts)
}

/// As [`prepare`], where kernels read some rows in some of the formats only: if rows are converted together,
/// each is converted to `formats_of_row`.
pub(crate) fn prepare_some<'x>(
    ctx: &'x WorkerContext<'_>,
    x: MatrixView<'x>,
    norm: Option<usize>,
    formats: InputFormats,
    formats_of_row: impl Fn(usize) -> InputFormats,
    acts: &'x mut ActBuffers,
) -> PreparedInput<'x> {
    if x.rows() < SHARED_ROWS || formats.f32 {
        return acts.prepare(x, ctx.norm(norm), formats);
    }
    let row_blocks = Q8Rows::row_blocks(x.cols());
    let all = |needed: bool| if needed { x.rows() * row_blocks } else { 0 };
    // others may still read the input of an earlier product of this phase
    ctx.barrier();
    for row in ctx.worker.share(x.rows(), 1) {
        let (formats, at) = (formats_of_row(row), row * row_blocks);
        // SAFETY: shares of rows are disjoint, and these are the lines of a row in this worker's; the barrier
        // before has ended all reads of them.
        let lines = formats.bf16.then(|| unsafe { ctx.lines_mut(at, row_blocks) });
        // SAFETY: as above, of blocks.
        let blocks = formats.a8.then(|| unsafe { ctx.blocks_mut(at, row_blocks) });
        acts.convert(x.row(row), ctx.norm(norm), lines, blocks);
    }
    ctx.barrier();
    PreparedInput::converted(x, ctx.lines(all(formats.bf16)), ctx.blocks(all(formats.a8)))
}
