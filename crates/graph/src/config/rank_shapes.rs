//! The tensors of a rank that has some of the model's files: those that are here, and those that the keys imply.

use super::checkpoint::CheckpointShapes;
use super::implied::ImpliedShapes;
use super::source::{ConfigTensors, MetadataKeys};
use crate::naming::TensorNaming;
use latent_formats::Checkpoint;

pub(super) struct RankShapes<'a> {
    here: CheckpointShapes<'a>,
    implied: ImpliedShapes<'a>,
}

impl<'a> RankShapes<'a> {
    pub(super) fn new(
        checkpoint: &'a Checkpoint,
        keys: &'a dyn MetadataKeys,
        naming: TensorNaming,
    ) -> RankShapes<'a> {
        RankShapes { here: CheckpointShapes(checkpoint), implied: ImpliedShapes { keys, naming } }
    }
}

impl ConfigTensors for RankShapes<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.here.shape(name).or_else(|| self.implied.shape(name))
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        self.here.f32s(name).or_else(|| self.implied.f32s(name))
    }
}
