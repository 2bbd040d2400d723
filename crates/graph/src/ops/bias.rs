//! `bias`: the same row added to every row.

use super::shared::{ROW_WEIGHT, X, Y_IN_PLACE, check_row_weight, one_weight};
use super::{Built, Kernels, NodeShapes, OpReference, Operation, Outputs, Port, WeightSlot, WeightUse};
use latent_types::OpKind;

/// A sum of each row and a weight, in place.
pub(super) struct Bias;

impl Operation for Bias {
    fn name(&self) -> &'static str {
        "bias"
    }

    fn built(&self) -> Built {
        Built::InPlace
    }

    fn inputs(&self) -> &'static [Port] {
        &[X]
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[Y_IN_PLACE])
    }

    fn slots(&self) -> &'static [WeightSlot] {
        &[ROW_WEIGHT]
    }

    fn weights_fit(&self, weights: &WeightUse) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> Kernels {
        Kernels::Own(OpKind::Add)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        check_row_weight(node);
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Adds a weight to each row, in place: the bias of the projection before it.",
            "y = x + b",
            "DeepSeek-V3's code, `attention_bias`",
        )
    }
}
