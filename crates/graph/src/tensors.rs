//! The tensors of a checkpoint as circuits look them up.

use crate::circuit::{Naming, TensorIndex};
use base::TensorType;
use formats::{Checkpoint, Source};

/// An opened checkpoint, seen as names, types and shapes.
#[derive(Clone, Copy)]
pub struct CheckpointTensors<'a>(pub &'a Checkpoint);

impl TensorIndex for CheckpointTensors<'_> {
    fn naming(&self) -> Naming {
        match self.0.source() {
            Source::Gguf(_) => Naming::Gguf,
            Source::HuggingFace(_) => Naming::HuggingFace,
        }
    }

    fn find(&self, name: &str) -> Option<(TensorType, Vec<usize>)> {
        self.0.tensor(name).map(|tensor| (tensor.info.ty, tensor.info.shape.clone()))
    }

    fn file(&self) -> String {
        self.0.display_name()
    }
}
