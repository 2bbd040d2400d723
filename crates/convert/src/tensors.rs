//! The tensors of the new files, before they are written.

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

/// Where its numbers come from.
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

    /// Elements of a row, and rows of all its matrices together.
    pub(crate) fn rows(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        (cols, self.shape.iter().product::<usize>() / cols.max(1))
    }

    /// The type of the first tensor of the old file that it is made of.
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

/// The new tensors, as a config is read from them.
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

/// Tensors that have no place in the new file, and why nothing needs them.
type DroppedTensors = Vec<(String, String)>;

/// What becomes of the tensors of the old file, whose config is `config`, in one that says `new`: those of the new file, and those that it
/// leaves out.
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
    Err(ConvertError::Unknown { file: checkpoint.display_name(), tensors: unknown })
}
