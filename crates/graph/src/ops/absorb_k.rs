//! `absorb_k`: queries into latent space.

use super::shared::{ABSORBED, K_B, KV_B, Q_LATENT, Q_NOPE, Q_ROPE, projection_cost, some_projection};
use super::{
    CostInput, Folds, NodeCost, NodeMaker, NodeWeights, OpReference, Operation, Outputs, Port,
    RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// Projects queries into latent space with W_UK.
pub(super) struct AbsorbK;

impl Operation for AbsorbK {
    fn name(&self) -> &'static str {
        "absorb_k"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Q_NOPE, Q_ROPE] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Q_LATENT] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[K_B, KV_B] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        some_projection(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        // the latent side of W_UK is read along its rows in k_b, and across them in kv_b
        RequiredKernels::PerWeight(|slot| if slot == "kv_b" { OpKind::LinearT } else { OpKind::Linear }, &[])
    }

    fn folds(&self) -> Folds {
        Folds { rope: true, ..Folds::default() }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        projection_cost(at, at.width(1))
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: "2*rows*heads*nope*kv_lora",
            ..OpReference::new(
                "Projects the queries into latent space, so that they meet the latents themselves.",
                "q̃ = [W_UKᵀ q_nope | q_rope]",
                ABSORBED,
            )
        }
    }
}
