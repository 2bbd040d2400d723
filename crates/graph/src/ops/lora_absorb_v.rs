//! `lora_absorb_v`: an adapter of kv_b in attention results.

use super::shared::{ATTN, LATENT_MIX, LORA, LORA_KV_A, LORA_KV_B, lora_attention_cost, lora_matrices};
use super::{
    CostInput, NodeCost, NodeMaker, NodeWeights, OpReference, Operation, Outputs, Port, ShapeRule, WeightSlot,
};

/// Adds what an adapter of `kv_b` changes to each head's values, in place.
pub(super) struct LoraAbsorbV;

impl Operation for LoraAbsorbV {
    fn name(&self) -> &'static str {
        "lora_absorb_v"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[ATTN, LATENT_MIX] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[ATTN] })
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
        lora_attention_cost(at, at.width(0))
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: "2*rows*heads*lora_rank*(v + kv_lora)",
            ..OpReference::new(
                "Adds what an adapter of `kv_b` changes to each head's values, in place.",
                "o + s · f · B_UV (A õ)",
                LORA,
            )
        }
    }
}
