//! `rms_norm`: RMSNorm.

use super::shared::{ROW_WEIGHT, X, check_row_weight, one_weight};
use super::{
    NodeConstruction, NodeShapes, NodeWeights, OpReference, Operation, Outputs, Port, RequiredKernels,
    WeightSlot,
};
use latent_types::OpKind;

/// RMSNorm over whole rows.
pub(super) struct RmsNorm;

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::LikeFirst
    }

    fn inputs(&self) -> &'static [Port] {
        &[X]
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × width")] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        &[ROW_WEIGHT]
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        // its own kernel, whatever the weight is stored as
        RequiredKernels::Own(OpKind::RmsNorm)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        check_row_weight(node);
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Divides each row by its root mean square and multiplies by a weight. Where only matmuls and cache stores read the \
             result, `fold_norms` makes it their prologue.",
            "y = x / √(mean(x²) + ε) · w",
            "Zhang and Sennrich, arXiv:1910.07467",
        )
    }
}
