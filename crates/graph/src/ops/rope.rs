//! `rope`: rotary position embedding.

use super::shared::X;
use super::{NodeConstruction, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels};
use latent_types::OpKind;

/// Rotation of pairs of elements by position.
pub(super) struct Rope;

impl Operation for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::InPlace
    }

    fn inputs(&self) -> &'static [Port] {
        &[X]
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × width").with_note("in place or a copy")] })
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::Rope)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Rotates pairs of elements by the row's position: neighbours, or elements half a row apart. `fold_ropes` makes it part of \
             the operation that stores a key or absorbs a query.",
            "(a, b) ← (a·cos θ − b·sin θ, a·sin θ + b·cos θ),  θᵢ = p · ωᵢ",
            "Su and others, arXiv:2104.09864",
        )
    }
}
