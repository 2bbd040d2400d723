//! `lora_absorb_k`: an adapter of kv_b in absorbed queries.

use super::shared::{LORA, LORA_KV_A, LORA_KV_B, Q_LATENT, Q_NOPE, lora_attention_cost, lora_matrices};
use super::{
    CostInput, NodeCost, NodeMaker, NodeWeights, OpReference, Operation, Outputs, Port, ShapeRule, WeightSlot,
};

/// Adds what an adapter of `kv_b` changes to the queries in latent space, in place.
pub(super) struct LoraAbsorbK;

impl Operation for LoraAbsorbK {
    fn name(&self) -> &'static str {
        "lora_absorb_k"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Q_LATENT, Q_NOPE] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Q_LATENT] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[LORA_KV_A, LORA_KV_B] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        lora_matrices(weights)
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        lora_attention_cost(at, at.width(1))
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: "2*rows*heads*lora_rank*(nope + kv_lora)",
            ..OpReference::new(
                "Adds what an adapter of `kv_b` changes to the queries in latent space, in place.",
                "q̃ + s · f · Aᵀ (B_UKᵀ q_nope)",
                LORA,
            )
        }
    }
}
