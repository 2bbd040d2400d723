//! `absorb_v`: attention results out of latent space.

use super::shared::{
    ABSORBED, ATTN, KV_B, LATENT_MIX, V_B, check_partials, projection_cost, some_projection,
};
use super::{
    CostInput, Folds, NodeCost, NodeMaker, NodeShapes, NodeWeights, OpReference, Operation, Outputs, Port,
    RequiredKernels, ShapeRule, SplitFold, WeightSlot,
};
use latent_types::OpKind;

/// Projects attention results to each head's values with W_UV.
pub(super) struct AbsorbV;

impl Operation for AbsorbV {
    fn name(&self) -> &'static str {
        "absorb_v"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[LATENT_MIX] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[ATTN] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[V_B, KV_B] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        some_projection(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::PerWeight(|_| OpKind::Linear, &[])
    }

    fn folds(&self) -> Folds {
        Folds { kv_splits: SplitFold::Combines, ..Folds::default() }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn check(&self, node: &mut NodeShapes<'_>) {
        check_partials(node, |node| node.inputs.clone());
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        projection_cost(at, 0.0)
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: "2*rows*heads*v*kv_lora",
            ..OpReference::new(
                "Projects the attention result from latent space to each head's values.",
                "o = W_UV õ",
                ABSORBED,
            )
        }
    }
}
