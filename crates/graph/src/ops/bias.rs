//! `bias`: the same row added to every row.

use super::shared::{ROW_WEIGHT, X, Y_IN_PLACE, check_row_weight, one_weight};
use super::{
    NodeConstruction, NodeShapes, NodeWeights, OpReference, Operation, Outputs, Port, RequiredKernels,
    WeightSlot,
};
use latent_types::OpKind;

/// A sum of each row and a weight, in place.
pub(super) struct Bias;

impl Operation for Bias {
    fn name(&self) -> &'static str {
        "bias"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::InPlace
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

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::Add)
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
