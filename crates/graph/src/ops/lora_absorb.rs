//! `lora_absorb_k` and `lora_absorb_v`: an adapter of kv_b in absorbed attention.

use super::shared::{
    ATTN, LATENT_MIX, LORA, LORA_KV_A, LORA_KV_B, Q_LATENT, Q_NOPE, lora_attention_cost, lora_matrices,
};
use super::{
    CostInput, NodeCost, NodeMaker, NodeWeights, OpReference, Operation, Outputs, Port, ShapeRule, WeightSlot,
};

/// Adds what an adapter of `kv_b` changes to one side of absorbed attention, in place.
pub(super) struct LoraAbsorb {
    name: &'static str,
    /// What is added to, and what the adapter reads.
    inputs: &'static [Port],
    outputs: &'static [Port],
    /// The input as wide as the heads' part of `kv_b`.
    narrow: usize,
    flops: &'static str,
    summary: &'static str,
    formula: &'static str,
}

/// The queries in latent space.
pub(super) const LORA_ABSORB_K: LoraAbsorb = LoraAbsorb {
    name: "lora_absorb_k",
    inputs: &[Q_LATENT, Q_NOPE],
    outputs: &[Q_LATENT],
    narrow: 1,
    flops: "2*rows*heads*lora_rank*(nope + kv_lora)",
    summary: "Adds what an adapter of `kv_b` changes to the queries in latent space, in place.",
    formula: "q̃ + s · f · Aᵀ (B_UKᵀ q_nope)",
};

/// Each head's values.
pub(super) const LORA_ABSORB_V: LoraAbsorb = LoraAbsorb {
    name: "lora_absorb_v",
    inputs: &[ATTN, LATENT_MIX],
    outputs: &[ATTN],
    narrow: 0,
    flops: "2*rows*heads*lora_rank*(v + kv_lora)",
    summary: "Adds what an adapter of `kv_b` changes to each head's values, in place.",
    formula: "o + s · f · B_UV (A õ)",
};

impl Operation for LoraAbsorb {
    fn name(&self) -> &'static str {
        self.name
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        self.inputs
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(self.outputs)
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
        lora_attention_cost(at, at.width(self.narrow))
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: self.flops,
            ..OpReference::new(self.summary, self.formula, LORA)
        }
    }
}
