//! Rows of a weight as f32, decoded from the file's own blocks.

use crate::BackendError;
use latent_formats::{Checkpoint, ScaleGrid, ScaleTable, TensorInfo};
use latent_graph::circuit::Weight;
use latent_types::TensorType;
use std::ops::Range;

/// Factors that multiply rectangles of a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockFactors {
    /// The factors, row by row of rectangles, matrix after matrix.
    pub numbers: Vec<f32>,
    /// Rows of a rectangle.
    pub rows: usize,
    /// Columns of a rectangle.
    pub inputs: usize,
}

/// The weights of a model, as stored in the file.
#[derive(Clone, Copy)]
pub struct CheckpointRows<'c> {
    /// The file.
    pub checkpoint: &'c Checkpoint,
}

impl CheckpointRows<'_> {
    /// Rows of one matrix of a weight, with scales applied. `matrix` is the index of an expert or a
    /// head, 0 for a plain matrix. A vector is one row.
    ///
    /// # Errors
    /// If a tensor is missing, packed for the CPU, or cannot be decoded.
    pub fn rows(&self, weight: &Weight, matrix: usize, rows: Range<usize>) -> Result<Vec<f32>, BackendError> {
        let (inputs, outputs) = (weight.inputs(), weight.outputs());
        // Safetensors have one tensor per expert; GGUF stacks all experts in one tensor.
        let (part, within) = if weight.parts.len() > 1 { (matrix, 0) } else { (0, matrix) };
        let part = &weight.parts[part];
        self.not_packed(&part.tensor)?;
        let first = within * outputs + rows.start;
        let mut elements = self.numbers(&part.tensor, weight.ty, first..first + rows.len(), inputs)?;
        if let Some(scale) = &part.scale {
            self.apply_scales(weight, scale, within, rows, &mut elements)?;
        }
        Ok(elements)
    }

    /// A vector: norm weights, a router's bias.
    pub fn vector(&self, weight: &Weight) -> Result<Vec<f32>, BackendError> {
        let info = self.info(weight.key())?;
        // Some files store a vector as a matrix with one column, whose rows have one element.
        let width = info.shape.last().copied().unwrap_or(1);
        if weight.inputs() != width && info.shape.iter().product::<usize>() == weight.inputs() {
            return self.numbers(weight.key(), weight.ty, 0..info.rows(), width);
        }
        self.rows(weight, 0, 0..1)
    }

    /// Passes all rows of a weight to `take` as stored, in blocks of its type, matrix after matrix.
    /// Scales are [separate](Self::factors).
    pub fn blocks<T>(&self, weight: &Weight, take: impl FnOnce(&[u8]) -> T) -> Result<T, BackendError> {
        let mut all = Vec::new();
        for part in &weight.parts {
            self.not_packed(&part.tensor)?;
            // One of several parts is one matrix. A single part may stack all of them.
            let rows = weight.outputs() * if weight.parts.len() > 1 { 1 } else { weight.stacked() };
            let (tensor, mut scratch) = (self.checkpoint.rows(&part.tensor)?, Vec::new());
            let bytes =
                tensor.as_ref().ok_or_else(|| self.missing(&part.tensor))?.read(0..rows, &mut scratch);
            // The bytes of one tensor need not be copied: they may be in a mapped file.
            if weight.parts.len() == 1 {
                return Ok(take(bytes));
            }
            all.extend_from_slice(bytes);
        }
        Ok(take(&all))
    }

    /// The factors on rectangles of a weight, if its file stores any in addition to the blocks.
    pub fn factors(&self, weight: &Weight) -> Result<Option<BlockFactors>, BackendError> {
        let (mut numbers, mut grid) = (Vec::new(), None);
        for part in &weight.parts {
            let Some(scale) = &part.scale else { return Ok(None) };
            let matrices = weight.matrices() / weight.parts.len();
            let table = self.scales(weight, scale, matrices)?;
            // `BlockFactors` has one size of rectangles for all matrices.
            if *grid.get_or_insert(table.grid) != table.grid {
                return Err(BackendError::Unsupported(format!(
                    "{}: the scales {scale} cover other parts of a matrix than those of {}",
                    self.checkpoint.display_name(),
                    weight.key()
                )));
            }
            numbers.extend(table.numbers);
        }
        let sides = grid.unwrap_or(ScaleGrid::Matrix).sides([1, weight.outputs(), weight.inputs()]);
        Ok(Some(BlockFactors { numbers, rows: sides.0, inputs: sides.1 }))
    }

    /// The scales of `matrices` matrices of a weight.
    fn scales(&self, weight: &Weight, scale: &str, matrices: usize) -> Result<ScaleTable, BackendError> {
        let shape = [matrices, weight.outputs(), weight.inputs()];
        self.checkpoint.scales(scale, weight.ty, shape)?.ok_or_else(|| self.missing(scale))
    }

    fn not_packed(&self, tensor: &str) -> Result<(), BackendError> {
        // Tiles interleave rows, so that they cannot be read one by one.
        if self.info(tensor)?.tile_rows.is_none() {
            return Ok(());
        }
        Err(BackendError::Unsupported(format!(
            "{}: packed for the CPU backend; on other devices use the model that it was packed from",
            self.checkpoint.display_name()
        )))
    }

    fn missing(&self, name: &str) -> BackendError {
        BackendError::MissingTensor { file: self.checkpoint.display_name(), tensor: name.to_owned() }
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, BackendError> {
        self.checkpoint.info(name).ok_or_else(|| self.missing(name))
    }

    /// The elements of rows of a tensor.
    fn numbers(
        &self,
        name: &str,
        ty: TensorType,
        rows: Range<usize>,
        width: usize,
    ) -> Result<Vec<f32>, BackendError> {
        let mut out = vec![0.0; rows.len() * width];
        let (tensor, mut scratch) = (self.checkpoint.rows(name)?, Vec::new());
        let bytes = tensor.as_ref().ok_or_else(|| self.missing(name))?.read(rows, &mut scratch);
        latent_quant::decode(ty, bytes, &mut out)
            .map_err(|error| BackendError::Decode { file: self.checkpoint.display_name(), error })?;
        Ok(out)
    }

    /// Multiplies rows of a matrix by their scales. `within` is the index of the matrix in its
    /// tensor.
    fn apply_scales(
        &self,
        weight: &Weight,
        scale: &str,
        within: usize,
        rows: Range<usize>,
        elements: &mut [f32],
    ) -> Result<(), BackendError> {
        let matrices = weight.matrices() / weight.parts.len();
        let ScaleTable { numbers, grid } = self.scales(weight, scale, matrices)?;
        let (outputs, inputs) = (weight.outputs(), weight.inputs());
        let (block_rows, block_cols) = grid.sides([1, outputs, inputs]);
        let (down, across) = (outputs.div_ceil(block_rows.max(1)), inputs.div_ceil(block_cols.max(1)));
        let scales = &numbers[within * down * across..];
        for (row, line) in rows.zip(elements.chunks_exact_mut(inputs)) {
            for (column, element) in line.iter_mut().enumerate() {
                *element *= scales[row / block_rows * across + column / block_cols];
            }
        }
        Ok(())
    }
}
