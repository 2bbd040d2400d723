//! Rows of a weight as f32, decoded from the file's own blocks.

use latent_backend::BackendError;
use latent_formats::{Checkpoint, TensorRef};
use latent_graph::circuit::Weight;
use latent_types::TensorType;
use std::ops::Range;

/// The weights of a model, as the file has them.
pub(super) struct Weights<'c> {
    pub checkpoint: &'c Checkpoint,
}

impl Weights<'_> {
    /// Rows of one matrix of a weight (an expert, a head; 0 of a plain matrix), scales applied. A vector is one row.
    pub fn rows(&self, weight: &Weight, matrix: usize, rows: Range<usize>) -> Result<Vec<f32>, BackendError> {
        let (inputs, outputs) = (weight.inputs(), weight.outputs());
        // one tensor per matrix, or all matrices in one tensor
        let (part, within) = if weight.parts.len() > 1 { (matrix, 0) } else { (0, matrix) };
        let part = &weight.parts[part];
        let tensor = self.tensor(&part.tensor)?;
        if tensor.info.tile_rows.is_some() {
            return Err(BackendError::Unsupported(format!(
                "{}: packed for the CPU backend; the reference backend reads the model that it was packed from",
                self.checkpoint.display_name()
            )));
        }
        let row_bytes = weight.ty.row_bytes(inputs).unwrap_or(0);
        let first = within * outputs + rows.start;
        let bytes = &tensor.data[first * row_bytes..(first + rows.len()) * row_bytes];
        let mut elements = self.decode(weight.ty, bytes, rows.len() * inputs)?;
        if let Some(scale) = &part.scale {
            self.apply_scales(weight, scale, within, rows, &mut elements)?;
        }
        Ok(elements)
    }

    /// A vector: norm weights, a router's bias.
    pub fn vector(&self, weight: &Weight) -> Result<Vec<f32>, BackendError> {
        self.rows(weight, 0, 0..1)
    }

    /// x · Wᵀ for every row of `x`: `rows` of one matrix of the weight.
    pub fn product(
        &self,
        weight: &Weight,
        matrix: usize,
        rows: Range<usize>,
        x: &[f32],
    ) -> Result<Vec<f32>, BackendError> {
        let inputs = weight.inputs();
        let w = self.rows(weight, matrix, rows)?;
        let products = x.chunks_exact(inputs).flat_map(|x| w.chunks_exact(inputs).map(|row| dot(row, x)));
        Ok(products.collect())
    }

    fn tensor(&self, name: &str) -> Result<TensorRef<'_>, BackendError> {
        self.checkpoint.tensor(name).ok_or_else(|| BackendError::MissingTensor {
            file: self.checkpoint.display_name(),
            tensor: name.to_owned(),
        })
    }

    fn decode(&self, ty: TensorType, bytes: &[u8], elements: usize) -> Result<Vec<f32>, BackendError> {
        let mut out = vec![0.0; elements];
        latent_quant::decode(ty, bytes, &mut out)
            .map_err(|error| BackendError::Decode { file: self.checkpoint.display_name(), error })?;
        Ok(out)
    }

    /// NVFP4 files: one factor per tensor or per expert. FP8 files: one per block of 128 × 128, or as the config says.
    fn apply_scales(
        &self,
        weight: &Weight,
        scale: &str,
        within: usize,
        rows: Range<usize>,
        elements: &mut [f32],
    ) -> Result<(), BackendError> {
        let tensor = self.tensor(scale)?;
        let count = tensor.info.shape.iter().product();
        let scales = self.decode(tensor.info.ty, tensor.data, count)?;
        if weight.ty != TensorType::F8_E4M3 {
            let factor = scales.get(within).or(scales.first()).copied().unwrap_or(1.0);
            elements.iter_mut().for_each(|element| *element *= factor);
            return Ok(());
        }
        let (block_rows, block_cols) = self.checkpoint.fp8_block()?;
        let across = weight.inputs().div_ceil(block_cols);
        for (row, line) in rows.zip(elements.chunks_exact_mut(weight.inputs())) {
            for (column, element) in line.iter_mut().enumerate() {
                *element *= scales[row / block_rows * across + column / block_cols];
            }
        }
        Ok(())
    }
}

/// Σ aᵢ · bᵢ. The sum is kept in f64, so that its order does not matter.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}
