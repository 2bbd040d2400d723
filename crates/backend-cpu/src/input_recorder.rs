//! Sums the squares of the inputs of weights (importance matrix). After a phase, the first worker
//! reads the inputs of its products while the other workers wait. The inputs are still there, since
//! no phase overwrites its own inputs.

use crate::context::WorkerContext;
use crate::expert_rows::ExpertRows;
use crate::program::{Instruction, KvWeights, OperandView, ProgramStep, WeightKernel};
use latent_backend::InputSquares;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Sums by the index of a weight.
#[derive(Default)]
pub(crate) struct InputRecorder {
    found: Mutex<BTreeMap<usize, RecordedSquares>>,
}

enum RecordedSquares {
    Own(InputSquares),
    /// The weight has the same input, and therefore the same sums, as the weight with this index.
    As(usize),
}

impl InputRecorder {
    /// Adds the inputs of a phase. Every worker calls it and waits until the first has read them.
    /// `experts` holds the rows as the calling worker has sorted them in this phase.
    pub(crate) fn record(&self, steps: &[ProgramStep], ctx: &WorkerContext<'_>, experts: &ExpertRows) {
        if ctx.worker.index == 0 {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let mut sink = SquaresSink { found: &mut found, weight: 0 };
            steps.iter().for_each(|step| visit(step, ctx, experts, &mut sink));
        }
        ctx.barrier();
    }

    /// The sums by the index of a weight.
    pub(crate) fn finish(self) -> Vec<(usize, InputSquares)> {
        let found = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let own = |weight: usize| match found.get(&weight) {
            Some(RecordedSquares::Own(squares)) => Some(squares.clone()),
            _ => None,
        };
        let all = found.iter().filter_map(|(weight, at)| match at {
            RecordedSquares::Own(squares) => Some((*weight, squares.clone())),
            RecordedSquares::As(other) => Some((*weight, own(*other)?)),
        });
        all.collect()
    }
}

/// Receiver of the inputs of weights.
pub(crate) trait InputSink {
    /// Announces the rows of an input that all of `products` read. If it returns false, the rows
    /// are not passed.
    fn begin(&mut self, products: &[WeightKernel], matrices: usize, columns: usize) -> bool;

    /// Receives a row that a matrix of these weights is multiplied by.
    fn row(&mut self, matrix: usize, row: &[f32]);
}

struct SquaresSink<'a> {
    found: &'a mut BTreeMap<usize, RecordedSquares>,
    /// The weight that the current rows belong to.
    weight: usize,
}

impl InputSink for SquaresSink<'_> {
    /// Rows are summed for the first product only. The others refer to its sums.
    fn begin(&mut self, products: &[WeightKernel], matrices: usize, columns: usize) -> bool {
        let Some((first, others)) = products.split_first() else { return false };
        let new = || RecordedSquares::Own(InputSquares::new(matrices, columns));
        self.weight = first.weight;
        let own = matches!(self.found.entry(first.weight).or_insert_with(new), RecordedSquares::Own(_));
        for other in others {
            self.found.entry(other.weight).or_insert(RecordedSquares::As(first.weight));
        }
        own
    }

    fn row(&mut self, matrix: usize, row: &[f32]) {
        if let Some(RecordedSquares::Own(squares)) = self.found.get_mut(&self.weight) {
            squares.add(matrix, row);
        }
    }
}

/// Passes the inputs of a step's products to a sink. `experts` holds the rows as the first worker
/// has sorted them in this phase.
pub(crate) fn visit(
    step: &ProgramStep,
    ctx: &WorkerContext<'_>,
    experts: &ExpertRows,
    sink: &mut dyn InputSink,
) {
    let count = ctx.model.config.moe.map_or(0, |moe| moe.experts);
    match &step.instruction {
        Instruction::Linear(op) => {
            if !sink.begin(&op.products, 1, op.input.heads * op.input.width) {
                return;
            }
            normed(ctx, &op.input, op.norm).each(|row| sink.row(0, row));
        }
        Instruction::ExpertGateUp(op) => {
            if !sink.begin(&op.products, count, op.input.heads * op.input.width) {
                return;
            }
            let rows = normed(ctx, &op.input, op.norm);
            for (expert, pairs) in experts.active() {
                experts.rows(pairs).iter().for_each(|row| sink.row(expert, rows.row(*row as usize)));
            }
        }
        Instruction::ExpertDown(op) => {
            if !sink.begin(&op.products, count, op.input.width) {
                return;
            }
            let x = ctx.read(&op.input, 0..experts.len(), 0, op.input.width);
            for (expert, pairs) in experts.active() {
                pairs.for_each(|pair| sink.row(expert, x.row(pair)));
            }
        }
        Instruction::AbsorbK(op) => {
            let KvWeights::Separate(Some(product), _) = op.kv else { return };
            of_heads(ctx, step, product, &op.q_nope, sink);
        }
        Instruction::AbsorbV(op) => {
            let KvWeights::Separate(_, Some(product)) = op.kv else { return };
            // `input` holds the results: while values are recorded, attention combines its KV
            // splits.
            of_heads(ctx, step, product, &op.input, sink);
        }
        _ => {}
    }
}

fn of_heads(
    ctx: &WorkerContext<'_>,
    step: &ProgramStep,
    product: WeightKernel,
    input: &OperandView,
    sink: &mut dyn InputSink,
) {
    if sink.begin(&[product], input.heads, input.width) {
        for head in 0..input.heads {
            for row in ctx.batch.ranges_in(step.path).flatten() {
                sink.row(head, ctx.head(input, row, head));
            }
        }
    }
}

/// Rows of a value, normalized if the product that reads them applies a norm.
struct InputValues {
    numbers: Vec<f32>,
    width: usize,
}

impl InputValues {
    fn row(&self, row: usize) -> &[f32] {
        &self.numbers[row * self.width..(row + 1) * self.width]
    }

    fn each(&self, of_row: impl FnMut(&[f32])) {
        self.numbers.chunks_exact(self.width).for_each(of_row);
    }
}

fn normed(ctx: &WorkerContext<'_>, input: &OperandView, norm: Option<usize>) -> InputValues {
    let width = input.heads * input.width;
    let x = ctx.read(input, 0..ctx.rows, 0, width);
    let mut numbers = vec![0.0; ctx.rows * width];
    for (row, out) in numbers.chunks_exact_mut(width).enumerate() {
        match ctx.norm(norm) {
            Some((weight, eps)) => latent_kernels::rms_norm(x.row(row), weight, eps, out),
            None => out.copy_from_slice(x.row(row)),
        }
    }
    InputValues { numbers, width }
}
