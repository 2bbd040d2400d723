//! `sigmoid_mul`: an output gate.

use super::shared::{X, Y_IN_PLACE};
use super::{
    NodeConstruction, NodeShapes, OpReference, Operation, Outputs, Port, RequiredKernels, ShapeRule,
};
use latent_types::OpKind;

/// A product with the sigmoid of a gate, in place: the gate of an attention's output.
pub(super) struct SigmoidMul;

impl Operation for SigmoidMul {
    fn name(&self) -> &'static str {
        "sigmoid_mul"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::InPlace
    }

    fn inputs(&self) -> &'static [Port] {
        const {
            let gate =
                Port::f32("gate", "rows × inputs").with_note("one for each element of x, or for each head");
            &[X, gate]
        }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[Y_IN_PLACE])
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::SigmoidMul)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.same_width(0);
        let [x, gate] = &node.inputs[..] else { return };
        if ![x.heads, x.row_width()].contains(&gate.row_width()) {
            let text = format!(
                "{} has {} elements, {} has {} heads × {}: expected one for each head or element",
                gate.name,
                gate.row_width(),
                x.name,
                x.heads,
                x.width
            );
            node.wrong(ShapeRule::Kept, "gate".to_owned(), text);
        }
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Multiplies by the sigmoid of a gate, in place: the output gate of attention, one for each head or for each element.",
            "y = σ(gate) ⊙ x,  σ(g) = 1 / (1 + e⁻ᵍ)",
            "Qiu and others, arXiv:2505.06708",
        )
    }
}
