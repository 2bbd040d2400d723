//! `kv_lora_decompress`: latents to keys without position and values of every head.

use super::shared::{K_B, KV_B, LATENT, MLA, V_B, some_projection};
use super::{
    CostInput, NodeCost, NodeMaker, NodeWeights, OpReference, Operation, Outputs, Port, ShapeRule, WeightSlot,
};

/// Keys and values of a step's rows.
pub(super) struct KvLoraDecompress;

impl Operation for KvLoraDecompress {
    fn name(&self) -> &'static str {
        "kv_lora_decompress"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("expand_stores")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[LATENT] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(
            const { &[Port::f32("k_nope", "rows × heads × nope"), Port::f32("value", "rows × heads × v")] },
        )
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[K_B, V_B, KV_B] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        some_projection(weights)
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        NodeCost {
            weight_bytes: at.weight_bytes(1.0),
            flops: at.matmul_flops(at.rows),
            ..NodeCost::default()
        }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            flops: "2*rows*weights",
            ..OpReference::new(
                "Expands each row's latent to the keys without position and the values of every head.",
                "k_nope = W_UK c,  v = W_UV c",
                MLA,
            )
        }
    }
}
