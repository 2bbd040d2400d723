//! `l2_norm`: heads of unit length.

use super::shared::{KDA, X, Y_IN_PLACE};
use super::{NodeConstruction, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels};
use latent_types::OpKind;

/// Divides each head by its length, times a factor, in place: queries and keys of the delta rule.
pub(super) struct L2Norm;

impl Operation for L2Norm {
    fn name(&self) -> &'static str {
        "l2_norm"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::InPlace
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[X] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[Y_IN_PLACE])
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::L2Norm)
    }

    fn by_heads(&self) -> bool {
        true
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.same_width(0);
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Divides each head by its length, times a factor, in place. ε is 10⁻⁶ in every model.",
            "y = s · x / √(Σ x² + ε)",
            KDA,
        )
    }
}
