//! `relu2`: the activation of an MLP without gate.

use super::{NodeMaker, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels};
use latent_types::OpKind;

/// The squared ReLU.
pub(super) struct Relu2;

impl Operation for Relu2 {
    fn name(&self) -> &'static str {
        "relu2"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::CircuitMlp
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("x", "rows × ffn")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × ffn")] })
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::Relu2)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "The activation of an MLP without gate.",
            "y = max(x, 0)²",
            "So and others, arXiv:2109.08668",
        )
    }
}
