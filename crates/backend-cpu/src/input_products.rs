//! Sums the products XᵀX of the inputs X of selected weights (the Hessian of GPTQ). After a phase,
//! the first worker copies the inputs. Then all workers add the products, each to its own tiles.
//! Every sum is in the order of rows, so that it does not depend on the number of workers.

use crate::context::WorkerContext;
use crate::expert_rows::ExpertRows;
use crate::input_recorder::{InputSink, visit};
use crate::program::{ProgramStep, WeightKernel};
use latent_backend::{InputProducts, InputSelection};
use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

/// Rows of a triangle per tile. A tile is what one worker adds to.
const TILE_ROWS: usize = 32;

/// Input rows that are added in one pass over a row of a triangle: each pass loads and stores the
/// sums once.
const ROWS_TOGETHER: usize = 4;

/// Products of the selected weights.
pub(crate) struct ProductRecorder {
    weights: Vec<SelectedWeight>,
    /// The inputs of the current phase. The first worker writes them, then all workers read them.
    pending: RwLock<Vec<PendingRows>>,
}

/// A weight whose inputs are multiplied.
struct SelectedWeight {
    index: usize,
    selection: InputSelection,
    /// Created at the first input, which gives the number of columns.
    sums: OnceLock<TriangleTiles>,
}

/// Lower triangles of symmetric matrices, cut into tiles of whole rows.
struct TriangleTiles {
    columns: usize,
    /// The tiles of all matrices, one matrix after the other.
    tiles: Vec<Mutex<Vec<f32>>>,
}

impl TriangleTiles {
    fn new(matrices: usize, columns: usize) -> TriangleTiles {
        let rows = (0..columns).step_by(TILE_ROWS);
        let len = |first: usize| triangle_rows(first..(first + TILE_ROWS).min(columns));
        let of_matrix = || rows.clone().map(|first| Mutex::new(vec![0.0; len(first)]));
        TriangleTiles { columns, tiles: (0..matrices).flat_map(|_| of_matrix()).collect() }
    }

    fn per_matrix(&self) -> usize {
        self.columns.div_ceil(TILE_ROWS)
    }
}

/// Number of values in rows of a lower triangle.
fn triangle_rows(rows: Range<usize>) -> usize {
    rows.map(|row| row + 1).sum()
}

/// Input rows of one matrix of a weight in one phase.
struct PendingRows {
    weight: usize,
    /// Index among the selected matrices.
    matrix: usize,
    numbers: Vec<f32>,
}

impl ProductRecorder {
    /// Creates a recorder for weights, given as their indices and selected matrices.
    pub(crate) fn new(weights: impl Iterator<Item = (usize, InputSelection)>) -> ProductRecorder {
        let weight = |(index, selection)| SelectedWeight { index, selection, sums: OnceLock::new() };
        ProductRecorder { weights: weights.map(weight).collect(), pending: RwLock::default() }
    }

    /// Adds the inputs of a phase. Every worker calls it, and each waits until all have added their
    /// part: the next phase may overwrite the inputs.
    pub(crate) fn record(&self, steps: &[ProgramStep], ctx: &WorkerContext<'_>, experts: &ExpertRows) {
        if ctx.worker.index == 0 {
            let mut pending = self.pending.write().unwrap_or_else(PoisonError::into_inner);
            pending.clear();
            let mut sink = PendingSink { weights: &self.weights, pending: &mut pending, wanted: Vec::new() };
            steps.iter().for_each(|step| visit(step, ctx, experts, &mut sink));
        }
        ctx.barrier();
        {
            let pending = self.pending.read().unwrap_or_else(PoisonError::into_inner);
            let mut number = 0;
            for rows in pending.iter() {
                let Some(sums) = self.weights[rows.weight].sums.get() else { continue };
                let per_matrix = sums.per_matrix();
                for tile in 0..per_matrix {
                    if number % ctx.worker.count == ctx.worker.index {
                        let values = &sums.tiles[rows.matrix * per_matrix + tile];
                        let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
                        let first = tile * TILE_ROWS;
                        let of_tile = first..(first + TILE_ROWS).min(sums.columns);
                        add_products(&mut values, of_tile, &rows.numbers, sums.columns);
                    }
                    number += 1;
                }
            }
        }
        ctx.barrier();
    }

    /// The products, in the order of the selections.
    pub(crate) fn finish(self) -> Vec<InputProducts> {
        let of_weight = |weight: SelectedWeight| {
            let mut triangles = Vec::with_capacity(weight.selection.matrices.len());
            if let Some(sums) = weight.sums.into_inner() {
                let per_matrix = sums.per_matrix().max(1);
                let mut tiles = sums.tiles.into_iter();
                for _ in weight.selection.matrices.clone() {
                    let mut triangle = Vec::with_capacity(triangle_rows(0..sums.columns));
                    for tile in tiles.by_ref().take(per_matrix) {
                        triangle.append(&mut tile.into_inner().unwrap_or_else(PoisonError::into_inner));
                    }
                    triangles.push(triangle);
                }
            }
            InputProducts { selection: weight.selection, triangles }
        };
        self.weights.into_iter().map(of_weight).collect()
    }
}

/// Copies the inputs of a phase.
struct PendingSink<'a> {
    weights: &'a [SelectedWeight],
    pending: &'a mut Vec<PendingRows>,
    /// The selected weights that read the current rows.
    wanted: Vec<usize>,
}

impl InputSink for PendingSink<'_> {
    fn begin(&mut self, products: &[WeightKernel], _matrices: usize, columns: usize) -> bool {
        self.wanted.clear();
        for (number, weight) in self.weights.iter().enumerate() {
            if products.iter().any(|product| product.weight == weight.index) {
                weight.sums.get_or_init(|| TriangleTiles::new(weight.selection.matrices.len(), columns));
                self.wanted.push(number);
            }
        }
        !self.wanted.is_empty()
    }

    fn row(&mut self, matrix: usize, row: &[f32]) {
        for weight in &self.wanted {
            let selected = &self.weights[*weight].selection.matrices;
            if !selected.contains(&matrix) {
                continue;
            }
            let matrix = matrix - selected.start;
            match self.pending.last_mut().filter(|last| (last.weight, last.matrix) == (*weight, matrix)) {
                Some(last) => last.numbers.extend_from_slice(row),
                None => {
                    self.pending.push(PendingRows { weight: *weight, matrix, numbers: row.to_vec() });
                }
            }
        }
    }
}

/// Adds the products of input rows to rows of a lower triangle.
fn add_products(values: &mut [f32], rows: Range<usize>, inputs: &[f32], columns: usize) {
    for inputs in inputs.chunks(ROWS_TOGETHER * columns) {
        let zeros: &[f32] = &[];
        let mut x = [zeros; ROWS_TOGETHER];
        let mut count = 0;
        for (x, row) in x.iter_mut().zip(inputs.chunks_exact(columns)) {
            *x = row;
            count += 1;
        }
        let mut at = 0;
        for i in rows.clone() {
            let out = &mut values[at..=at + i];
            at += i + 1;
            if count == ROWS_TOGETHER {
                let [a, b, c, d] = x.map(|x| x[i]);
                let [xa, xb, xc, xd] = x.map(|x| &x[..=i]);
                for j in 0..out.len() {
                    out[j] += (a * xa[j] + b * xb[j]) + (c * xc[j] + d * xd[j]);
                }
            } else {
                for x in &x[..count] {
                    out.iter_mut().zip(&x[..=i]).for_each(|(out, v)| *out += x[i] * v);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triangles_hold_the_products_of_all_rows() {
        for (rows, columns) in [(1, 1), (3, 5), (4, 33), (7, 70)] {
            let x: Vec<f32> = (0..rows * columns).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let tiles = TriangleTiles::new(1, columns);
            let mut all = Vec::new();
            for (number, tile) in tiles.tiles.iter().enumerate() {
                let first = number * TILE_ROWS;
                let mut tile = tile.lock().unwrap();
                add_products(&mut tile, first..(first + TILE_ROWS).min(columns), &x, columns);
                all.extend_from_slice(&tile);
            }
            let mut at = 0;
            for i in 0..columns {
                for j in 0..=i {
                    let sum: f32 = (0..rows).map(|r| x[r * columns + i] * x[r * columns + j]).sum();
                    assert!((all[at] - sum).abs() < 1e-3, "{rows}×{columns} [{i}, {j}]");
                    at += 1;
                }
            }
            assert_eq!(at, all.len());
        }
    }
}
