//! `mla_attention`: multi-head latent attention, before lowering.

use super::shared::{
    ATTN, K_B, K_ROPE, KV_B, LATENT, LORA_KV_A, LORA_KV_B, MLA, Q_NOPE, Q_ROPE, SELECTED, V_B,
    some_projection,
};
use super::{KvUse, NodeWeights, OpReference, Operation, Outputs, Port, ShapeRule, WeightSlot};

/// Attention as a circuit says it, whatever path it will take.
pub(super) struct MlaAttention;

impl Operation for MlaAttention {
    fn name(&self) -> &'static str {
        "mla_attention"
    }

    fn lowered_by(&self) -> Option<&'static str> {
        Some("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Q_NOPE, Q_ROPE, LATENT, K_ROPE, SELECTED] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[ATTN] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[K_B, V_B, KV_B, LORA_KV_A, LORA_KV_B] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        some_projection(weights)
    }

    fn kv(&self) -> KvUse {
        KvUse { stores: true, attends: true, layers: &[], row: "" }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "Multi-head latent attention as the circuit says it. `lower_mla` makes a cache store and one or two attention paths of it.",
            "o = Σⱼ softmaxⱼ(s · (q_nope · W_UK cⱼ + q_rope · k_ropeⱼ)) · W_UV cⱼ",
            MLA,
        )
    }
}
