//! Scales stored as separate tensors (FP8).

use crate::error::ConvertError;
use latent_formats::{Checkpoint, ScaleGrid, ScaleTable};
use latent_graph::circuit::WeightPart;
use latent_types::TensorType;

/// Scales of a tensor.
pub(crate) enum TensorScale {
    None,
    /// One for the tensor, or one per matrix.
    Matrix(Vec<f32>),
    /// One per block of (rows, columns). A matrix has `per_matrix` rows of `per_row` scales.
    Blocks {
        scales: Vec<f32>,
        block: (usize, usize),
        per_row: usize,
        per_matrix: usize,
    },
}

impl TensorScale {
    /// The scales of `part`, whose matrices have `rows` and `cols`.
    pub(crate) fn of(
        checkpoint: &Checkpoint,
        part: &WeightPart,
        (matrices, rows, cols): (usize, usize, usize),
    ) -> Result<TensorScale, ConvertError> {
        let Some(name) = &part.scale else { return Ok(TensorScale::None) };
        let shape = [matrices, rows, cols];
        let ty = checkpoint.info(&part.tensor).map_or(TensorType::F32, |info| info.ty);
        let Some(ScaleTable { numbers, grid }) = checkpoint.scales(name, ty, shape)? else {
            return Ok(TensorScale::None);
        };
        let block = grid.sides(shape);
        Ok(match grid {
            ScaleGrid::Matrix => TensorScale::Matrix(numbers),
            ScaleGrid::Rows | ScaleGrid::Blocks { .. } => TensorScale::Blocks {
                scales: numbers,
                block,
                per_row: cols.div_ceil(block.1.max(1)),
                per_matrix: rows.div_ceil(block.0.max(1)),
            },
        })
    }

    /// Multiplies a row of matrix `matrix` by its scales.
    pub(crate) fn apply(&self, matrix: usize, row: usize, numbers: &mut [f32]) {
        match self {
            TensorScale::None => {}
            TensorScale::Matrix(scales) => {
                let scale = scales[if scales.len() == 1 { 0 } else { matrix }];
                numbers.iter_mut().for_each(|number| *number *= scale);
            }
            TensorScale::Blocks { scales, block, per_row, per_matrix } => {
                let first = (matrix * per_matrix + row / block.0.max(1)) * per_row;
                for (numbers, scale) in
                    numbers.chunks_mut(block.1.max(1)).zip(&scales[first..first + per_row])
                {
                    numbers.iter_mut().for_each(|number| *number *= scale);
                }
            }
        }
    }
}
