//! `silu`: an activation without a second factor.

use super::shared::{X, Y_IN_PLACE};
use super::{NodeConstruction, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels};
use latent_types::OpKind;

/// SiLU, in place: between the two products of a gated norm.
pub(super) struct Silu;

impl Operation for Silu {
    fn name(&self) -> &'static str {
        "silu"
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
        RequiredKernels::Own(OpKind::Silu)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "SiLU of each element, in place: between the two products that make the gate of a norm (A.X-K2).",
            "y = x / (1 + e⁻ˣ)",
            "Elfwing and others, arXiv:1702.03118",
        )
    }
}
