//! `gated_norm`: RMSNorm of each head with an output gate.

use super::shared::{KDA, X, Y_IN_PLACE, one_weight};
use super::{
    NodeConstruction, NodeShapes, NodeWeights, OpReference, Operation, Outputs, Port, RequiredKernels,
    ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// RMSNorm of each head, times the sigmoid of a gate, in place: the output of the delta rule.
pub(super) struct GatedNorm;

impl Operation for GatedNorm {
    fn name(&self) -> &'static str {
        "gated_norm"
    }

    fn built(&self) -> NodeConstruction {
        NodeConstruction::InPlace
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[X, Port::f32("gate", "rows × width")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[Y_IN_PLACE])
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[WeightSlot::new("any", "part").with_note("one element for each of a head")] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::GatedNorm)
    }

    fn by_heads(&self) -> bool {
        true
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
        let width = node.inputs.first().map_or(0, |x| x.width);
        if let Some(weight) = node.weights.first().filter(|weight| *weight.shape != [width]).copied() {
            let text = format!("the weight has shape {:?}, a head has {width} elements", weight.shape);
            node.wrong(ShapeRule::Norm, weight.slot.to_owned(), text);
        }
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "RMSNorm of each head, times the sigmoid of a gate, in place: the output of the delta rule.",
            "y = x / √(mean x² + ε) ⊙ w ⊙ σ(gate)",
            KDA,
        )
    }
}
