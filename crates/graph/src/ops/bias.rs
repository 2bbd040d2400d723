//! `bias`: the same row added to every row.

use super::shared::one_weight;
use super::{Built, Kernels, NodeShapes, OpReference, Operation, Outputs, Port, WeightSlot, WeightUse};
use latent_types::OpKind;

/// A sum of each row and a weight, in place.
pub(super) struct Bias;

impl Operation for Bias {
    fn name(&self) -> &'static str {
        "bias"
    }

    fn built(&self) -> Built {
        Built::InPlace
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("x", "rows × width")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × width").with_note("in place of x")] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[WeightSlot::new("any", "width")] }
    }

    fn weights_fit(&self, weights: &WeightUse) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> Kernels {
        Kernels::Own(OpKind::Add)
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        node.keeps_width();
        if let Some(weight) = node.weights.first().copied() {
            node.norm_width(weight.slot, weight.shape);
        }
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Adds a weight to each row, in place: the bias of the projection before it.",
            "y = x + b",
            "DeepSeek-V3's code, `attention_bias`",
        )
    }
}
