//! `scale`: products with a factor.

use super::shared::{X, Y_IN_PLACE};
use super::{NodeConstruction, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels};
use latent_types::OpKind;

/// A product with a factor, in place.
pub(super) struct Scale;

impl Operation for Scale {
    fn name(&self) -> &'static str {
        "scale"
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

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::Scale)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new("Multiplies by a factor, in place.", "y = s · x", "the circuit")
    }
}
