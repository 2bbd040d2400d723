//! `embed`: rows of the embedding.

use super::shared::one_weight;
use super::{
    CostInput, NodeCost, NodeWeights, OpReference, Operation, Outputs, Port, RequiredKernels, ShapeRule,
    WeightSlot,
};
use latent_types::OpKind;

/// Rows of the embedding, times a factor.
pub(super) struct Embed;

impl Operation for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::u32("tokens", "rows")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("h", "rows × hidden").with_note("the residual stream")] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[WeightSlot::new("embed", "vocab × hidden")] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::PerWeight(|_| OpKind::Embed, &[])
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Gives
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        let row: f64 = at.weights.iter().map(|w| w.row_bytes).sum();
        NodeCost { weight_bytes: row * at.rows, cache_bytes: 0.0, flops: 0.0, link_bytes: 0.0 }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "rows*row_bytes",
            ..OpReference::new(
                "Rows of the embedding, times a factor where the model has one.",
                "h[r] = s · E[token[r]]",
                "the circuit",
            )
        }
    }
}
