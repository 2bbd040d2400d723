//! `add`: sums into the residual stream.

use super::{NodeConstruction, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels};
use latent_types::OpKind;

/// A sum in place of its first input, times a factor.
pub(super) struct Add;

impl Operation for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::InPlace
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("base", "rows × width"), Port::f32("term", "rows × width")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × width").with_note("in place of base")] })
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::Add)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Adds to the residual stream, in place, times a factor where the model has one.",
            "y = base + s · term",
            "He and others, arXiv:1512.03385",
        )
    }
}
