//! Tensor lookup in a checkpoint or an outline, for circuits.

use crate::circuit::{TensorIndex, TensorNaming};
use latent_formats::{AttachedAdapter, Checkpoint, CheckpointSource, Outline};
use latent_types::TensorType;

/// The naming convention of a file.
pub(crate) fn naming_of(source: &CheckpointSource) -> TensorNaming {
    match source {
        CheckpointSource::Gguf(_) => TensorNaming::Gguf,
        CheckpointSource::HuggingFace(_) => TensorNaming::HuggingFace,
    }
}

/// An opened checkpoint as names, types and shapes.
#[derive(Clone, Copy)]
pub struct CheckpointTensors<'a>(pub &'a Checkpoint);

impl TensorIndex for CheckpointTensors<'_> {
    fn naming(&self) -> TensorNaming {
        naming_of(self.0.source())
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        self.0.info(name).map(|info| (info.ty, info.shape.clone()))
    }

    fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
        self.0
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.ty, tensor.shape.as_slice()))
            .collect()
    }

    fn file(&self) -> String {
        self.0.display_name()
    }

    fn adapters(&self) -> &[AttachedAdapter] {
        self.0.adapters()
    }
}

impl TensorIndex for Outline {
    fn naming(&self) -> TensorNaming {
        naming_of(self.source())
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        self.tensor(name).map(|tensor| (tensor.ty, tensor.shape.clone()))
    }

    fn all(&self) -> Vec<(&str, TensorType, &[usize])> {
        self.tensors()
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.ty, tensor.shape.as_slice()))
            .collect()
    }

    fn file(&self) -> String {
        self.display_name()
    }
}
