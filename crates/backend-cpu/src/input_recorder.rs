//! Summing the squares of what weights are multiplied by: after a phase, the first worker reads the inputs of its products while the others wait.
//! A phase writes over none of its own inputs.

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

/// Sums of a weight, or where those of the same input are.
enum RecordedSquares {
    Own(InputSquares),
    As(usize),
}

impl InputRecorder {
    /// Adds the inputs of a phase. Every worker calls it; none goes on before the first has read. `experts` are the rows as the first worker has
    /// sorted them in this phase.
    pub(crate) fn record(&self, steps: &[ProgramStep], ctx: &WorkerContext<'_>, experts: &ExpertRows) {
        if ctx.worker.index == 0 {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            for step in steps {
                add(&mut found, step, ctx, experts);
            }
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

type SquaresByWeight = BTreeMap<usize, RecordedSquares>;

fn add(found: &mut SquaresByWeight, step: &ProgramStep, ctx: &WorkerContext<'_>, experts: &ExpertRows) {
    match &step.instruction {
        Instruction::Linear(op) => {
            let rows = normed(ctx, &op.input, op.norm);
            of_products(found, &op.products, 1, rows.width, &mut |squares| {
                rows.each(|row| squares.add(0, row));
            });
        }
        Instruction::ExpertGateUp(op) => {
            let rows = normed(ctx, &op.input, op.norm);
            let count = ctx.model.config.moe.map_or(0, |moe| moe.experts);
            of_products(found, &op.products, count, rows.width, &mut |squares| {
                for (expert, pairs) in experts.active() {
                    experts.rows(pairs).iter().for_each(|row| squares.add(expert, rows.row(*row as usize)));
                }
            });
        }
        Instruction::ExpertDown(op) => {
            let count = ctx.model.config.moe.map_or(0, |moe| moe.experts);
            let x = ctx.read(&op.input, 0..experts.len(), 0, op.input.width);
            of_products(found, std::slice::from_ref(&op.product), count, op.input.width, &mut |squares| {
                for (expert, pairs) in experts.active() {
                    pairs.for_each(|pair| squares.add(expert, x.row(pair)));
                }
            });
        }
        Instruction::AbsorbK(op) => {
            let KvWeights::Separate(Some(product), _) = op.kv else { return };
            of_heads(found, product, &op.q_nope, &mut |head, squares| {
                for row in ctx.batch.ranges_in(step.path).flatten() {
                    squares.add(head, ctx.head(&op.q_nope, row, head));
                }
            });
        }
        Instruction::AbsorbV(op) => {
            let KvWeights::Separate(_, Some(product)) = op.kv else { return };
            // attention leaves no partial results where values are recorded
            of_heads(found, product, &op.input, &mut |head, squares| {
                for row in ctx.batch.ranges_in(step.path).flatten() {
                    squares.add(head, ctx.head(&op.input, row, head));
                }
            });
        }
        _ => {}
    }
}

/// Adds to the first of several products of one input, and notes that the others have the same.
fn of_products(
    found: &mut SquaresByWeight,
    products: &[WeightKernel],
    matrices: usize,
    columns: usize,
    add: &mut dyn FnMut(&mut InputSquares),
) {
    let Some((first, others)) = products.split_first() else { return };
    let at = found
        .entry(first.weight)
        .or_insert_with(|| RecordedSquares::Own(InputSquares::new(matrices, columns)));
    if let RecordedSquares::Own(squares) = at {
        add(squares);
    }
    for other in others {
        found.entry(other.weight).or_insert(RecordedSquares::As(first.weight));
    }
}

fn of_heads(
    found: &mut SquaresByWeight,
    product: WeightKernel,
    input: &OperandView,
    add: &mut dyn FnMut(usize, &mut InputSquares),
) {
    of_products(found, &[product], input.heads, input.width, &mut |squares| {
        (0..input.heads).for_each(|head| add(head, squares));
    });
}

/// Rows of a value, normalized where the product that reads them does so.
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
