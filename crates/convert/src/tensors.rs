//! Tensors of the new files.

use crate::error::ConvertError;
use latent_formats::Checkpoint;
use latent_graph::circuit::{TensorOrigin, Transfer, Transfers};
use latent_graph::config::ConfigTensors;
use latent_graph::{CheckpointTensors, Circuit, ModelConfig};
use latent_types::TensorType;
use std::collections::HashMap;

/// A tensor of a new file.
#[derive(Clone, Debug)]
pub(crate) struct NewTensor {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// Outermost dimension first.
    pub(crate) shape: Vec<usize>,
    pub(crate) from: NewTensorContents,
}

/// Source of a new tensor's numbers.
#[derive(Clone, Debug)]
pub(crate) enum NewTensorContents {
    /// Tensors of the old file.
    Tensors(TensorOrigin),
    /// The configuration.
    Numbers(Vec<f32>),
}

impl NewTensor {
    pub(crate) fn new(transfer: Transfer, ty: TensorType) -> NewTensor {
        let Transfer { name, shape, from } = transfer;
        NewTensor { name, ty, shape, from: NewTensorContents::Tensors(from) }
    }

    /// Elements per row, and number of rows over all matrices.
    pub(crate) fn rows(&self) -> (usize, usize) {
        // A tensor without dimensions is one row of one element.
        let cols = self.shape.last().copied().unwrap_or(1);
        (cols, self.shape.iter().product::<usize>() / cols.max(1))
    }

    /// Type of the first tensor of the old file that it is made from.
    pub(crate) fn stored_type(&self, checkpoint: &Checkpoint) -> Option<TensorType> {
        let NewTensorContents::Tensors(origin) = &self.from else { return None };
        let part = match origin {
            TensorOrigin::Stacked(parts) => parts.first()?,
            TensorOrigin::Matrix { part, .. }
            | TensorOrigin::Uk(part)
            | TensorOrigin::Uv(part)
            | TensorOrigin::Rates { part, .. }
            | TensorOrigin::LogRates(part)
            | TensorOrigin::Queries(part)
            | TensorOrigin::Gates(part)
            | TensorOrigin::QueriesAndGates { queries: part, .. }
            | TensorOrigin::Joined { uk: part, .. } => part,
        };
        checkpoint.info(&part.tensor).map(|info| info.ty)
    }

    pub(crate) fn elements(&self) -> u64 {
        self.shape.iter().map(|n| *n as u64).product()
    }

    /// Bytes in the new file.
    pub(crate) fn bytes(&self) -> u64 {
        let (cols, rows) = self.rows();
        self.ty.row_bytes(cols).unwrap_or(0) as u64 * rows as u64
    }
}

/// Index of the new tensors by name, from which a config can be read.
pub(crate) struct NewTensorIndex<'a>(HashMap<&'a str, &'a NewTensor>);

impl<'a> NewTensorIndex<'a> {
    pub(crate) fn new(tensors: &'a [NewTensor]) -> NewTensorIndex<'a> {
        NewTensorIndex(tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect())
    }
}

impl ConfigTensors for NewTensorIndex<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.get(name).map(|tensor| tensor.shape.clone())
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        match &self.0.get(name)?.from {
            NewTensorContents::Numbers(numbers) => Some(numbers.clone()),
            NewTensorContents::Tensors(_) => None,
        }
    }
}

/// Names of tensors that the new file omits, with the reason.
type DroppedTensors = Vec<(String, String)>;

/// Maps the tensors of the old file with config `config` to those of a new file with config `new`.
/// Returns the new tensors and the omitted ones.
pub(crate) fn transferred(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    new: &ModelConfig,
) -> Result<(Vec<Transfer>, DroppedTensors), ConvertError> {
    let circuit = Circuit::named(&config.circuit)?;
    let Transfers { tensors, dropped, unknown } =
        circuit.transfers(config, new, &CheckpointTensors(checkpoint))?;
    if unknown.is_empty() {
        return Ok((tensors, dropped));
    }
    // An unknown tensor may change the result, so never drop it silently.
    Err(ConvertError::Unknown { file: checkpoint.display_name(), tensors: unknown })
}
