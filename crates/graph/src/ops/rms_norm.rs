//! `rms_norm`: RMSNorm.

use super::shared::{ROW_WEIGHT, X, check_row_weight, one_weight};
use super::{Built, Kernels, NodeShapes, OpReference, Operation, Outputs, Port, WeightSlot, WeightUse};
use latent_types::OpKind;

/// RMSNorm over whole rows.
pub(super) struct RmsNorm;

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn built(&self) -> Built {
        Built::LikeFirst
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

    fn weights_fit(&self, weights: &WeightUse) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> Kernels {
        // its own kernel, whatever the weight is stored as
        Kernels::Own(OpKind::RmsNorm)
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
