//! `silu_mul`: the activation of a gated MLP.

use super::{NodeMaker, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels};
use latent_types::OpKind;

/// The activation of a gated MLP.
pub(super) struct SiluMul;

impl Operation for SiluMul {
    fn name(&self) -> &'static str {
        "silu_mul"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::CircuitMlp
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("gate", "rows × ffn"), Port::f32("up", "rows × ffn")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × ffn")] })
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::SiluMul)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "The activation of a gated MLP.",
            "y = silu(gate) ⊙ up,  silu(g) = g / (1 + e⁻ᵍ)",
            "Shazeer, arXiv:2002.05202",
        )
    }
}
