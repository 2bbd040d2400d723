//! `attend_expanded`: attention over expanded keys and values.

use super::shared::{ATTN, K_B, KV_B, MLA, Q_NOPE, Q_ROPE, SELECTED, V_B};
use super::{
    CostInput, KernelRows, KvLayerKind, KvUse, NodeCost, NodeMaker, NodeWeights, OpReference, Operation,
    Outputs, Port, RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// Attention over keys and values of every head.
pub(super) struct AttendExpanded;

impl Operation for AttendExpanded {
    fn name(&self) -> &'static str {
        "attend_expanded"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("lower_mla")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Q_NOPE, Q_ROPE, SELECTED] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[ATTN] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[K_B, V_B, KV_B] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        let expands = weights.kv == Some(KvLayerKind::Latent);
        if (weights.count > 0) == expands {
            Ok(())
        } else {
            Err("W_UK and W_UV over latents, none over expanded rows")
        }
    }

    fn kv(&self) -> KvUse {
        let layers = &[KvLayerKind::Latent, KvLayerKind::Expanded];
        KvUse { stores: false, attends: true, layers, row: "latent or expanded rows" }
    }

    fn kernels(&self) -> RequiredKernels {
        // a matmul expands values; keys have a kernel of their own, which reads W_UK dequantized
        RequiredKernels::PerWeight(
            |slot| if slot == "k_b" { OpKind::ExpandKeys } else { OpKind::Linear },
            &[OpKind::ExpandKeys, OpKind::AttendExpanded],
        )
    }

    fn kernel_rows(&self) -> KernelRows {
        KernelRows::Bucket
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        let attend = 2.0 * at.pairs * at.heads * (at.width(0) + at.width(1) + at.out_width);
        let expand = if at.kv == Some(KvLayerKind::Latent) { at.matmul_flops(at.kv_len) } else { 0.0 };
        NodeCost {
            weight_bytes: at.weight_bytes(1.0),
            cache_bytes: at.kv_len * at.kv_row_bytes,
            flops: attend + expand,
            link_bytes: 0.0,
        }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "weight_bytes",
            cache_bytes: "kv_len*kv_row_bytes",
            flops: "2*pairs*heads*(nope+rope+v)+2*kv_len*weights",
            ..OpReference::new(
                "Attention over keys and values of every head, expanded from the cached latents for a group of heads at a time, or read \
             from an expanded cache (then without weights). Its steps are kv_lora_decompress (each cⱼ to k_nope and v), \
             partial_rope_concat ([k_nope | k_rope]) and attention.",
                "kⱼ = [W_UK cⱼ | k_ropeⱼ],  vⱼ = W_UV cⱼ;  o = Σⱼ softmaxⱼ(s · q · kⱼ) · vⱼ",
                MLA,
            )
        }
    }
}
