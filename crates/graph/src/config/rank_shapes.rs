//! The tensors of a rank that has some of the model's files: those that are here, and those that the keys imply.

use super::checkpoint::CheckpointShapes;
use super::implied::Implied;
use super::source::{Keys, Tensors};
use crate::naming::Naming;
use latent_formats::Checkpoint;

pub(super) struct RankShapes<'a> {
    here: CheckpointShapes<'a>,
    implied: Implied<'a>,
}

impl<'a> RankShapes<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, keys: &'a dyn Keys, naming: Naming) -> RankShapes<'a> {
        RankShapes { here: CheckpointShapes(checkpoint), implied: Implied { keys, naming } }
    }
}

impl Tensors for RankShapes<'_> {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.here.shape(name).or_else(|| self.implied.shape(name))
    }

    fn f32s(&self, name: &str) -> Option<Vec<f32>> {
        self.here.f32s(name).or_else(|| self.implied.f32s(name))
    }
}
