//! `expanded_store`: expanded keys and values into the KV cache.

use super::shared::{K_B, K_ROPE, KV_B, LATENT, MLA, V_B, some_projection};
use super::{
    CostInput, Folds, KvLayerKind, KvUse, NodeCost, NodeMaker, NodeWeights, OpReference, Operation, Outputs,
    Port, RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// Expands latents and stores keys and values of every head.
pub(super) struct ExpandedStore;

impl Operation for ExpandedStore {
    fn name(&self) -> &'static str {
        "expanded_store"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[LATENT, K_ROPE] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[])
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[K_B, V_B, KV_B] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        some_projection(weights)
    }

    fn kv(&self) -> KvUse {
        KvUse {
            stores: true,
            attends: false,
            layers: &[KvLayerKind::Expanded],
            row: "heads · (nope + rope + v) elements per row",
        }
    }

    fn kernels(&self) -> RequiredKernels {
        // keys are expanded across the rows of k_b, whose rows are elements of the latent
        RequiredKernels::PerWeight(|slot| if slot == "k_b" { OpKind::LinearT } else { OpKind::Linear }, &[])
    }

    fn folds(&self) -> Folds {
        Folds { rope: true, ..Folds::default() }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        NodeCost {
            weight_bytes: at.weight_bytes(1.0),
            cache_bytes: at.rows * at.kv_row_bytes,
            flops: at.matmul_flops(at.rows),
            link_bytes: 0.0,
        }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            cache_bytes: "rows*kv_row_bytes",
            flops: "2*rows*weights",
            ..OpReference::new(
                "Stores each row's keys and values of every head in the KV cache: what attention without a latent cache stores. \
             Its steps are kv_lora_decompress (c to k_nope and v), partial_rope_concat ([k_nope | k_rope]) and the store.",
                "cache[p] ← [W_UK c | k_rope | W_UV c] of every head",
                MLA,
            )
        }
    }
}
