//! Scales that are stored as separate tensors.

use crate::error::ConvertError;
use latent_formats::Checkpoint;
use latent_graph::circuit::WeightPart;

/// What the numbers of a tensor are multiplied by.
pub(crate) enum TensorScale {
    None,
    Matrix(Vec<f32>),
    /// One for each block of (rows, columns). A matrix has `per_matrix` rows of `per_row` scales.
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
        let (Some(info), Some(stored)) = (checkpoint.info(name), checkpoint.rows(name)?) else {
            return Ok(TensorScale::None);
        };
        let ty = info.ty;
        let count = info.shape.iter().product();
        let mut scales = vec![0.0; count];
        latent_quant::decode(ty, &stored.bytes(0..info.rows()), &mut scales)
            .map_err(|_| ConvertError::NotDecodable { tensor: name.clone(), ty })?;
        let block = checkpoint.fp8_block()?;
        let (per_row, per_matrix) = (cols.div_ceil(block.1), rows.div_ceil(block.0));
        let blocks = per_row * per_matrix * matrices;
        if count == 1 || count == matrices {
            return Ok(TensorScale::Matrix(scales));
        }
        if count == blocks {
            return Ok(TensorScale::Blocks { scales, block, per_row, per_matrix });
        }
        Err(ConvertError::Scales {
            tensor: part.tensor.clone(),
            scale: name.clone(),
            found: count,
            expected: format!("1, {matrices} or {blocks}: one for each block of {} × {}", block.0, block.1),
        })
    }

    /// Multiplies a row of the matrix `matrix`.
    pub(crate) fn apply(&self, matrix: usize, row: usize, numbers: &mut [f32]) {
        match self {
            TensorScale::None => {}
            TensorScale::Matrix(scales) => {
                let scale = scales[if scales.len() == 1 { 0 } else { matrix }];
                numbers.iter_mut().for_each(|number| *number *= scale);
            }
            TensorScale::Blocks { scales, block, per_row, per_matrix } => {
                let first = (matrix * per_matrix + row / block.0) * per_row;
                for (numbers, scale) in numbers.chunks_mut(block.1).zip(&scales[first..first + per_row]) {
                    numbers.iter_mut().for_each(|number| *number *= scale);
                }
            }
        }
    }
}
