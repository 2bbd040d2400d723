//! `latent_store`: latents into the KV cache.

use super::shared::{K_ROPE, LATENT, LATENT_ROW, MLA};
use super::{
    CostInput, Folds, KvLayerKind, KvUse, NodeCost, NodeMaker, NormFold, OpReference, Operation, Outputs,
    Port, RequiredKernels, ShapeRule,
};
use latent_types::OpKind;

/// Stores latents and rotated keys.
pub(super) struct LatentStore;

impl Operation for LatentStore {
    fn name(&self) -> &'static str {
        "latent_store"
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

    fn kv(&self) -> KvUse {
        KvUse { stores: true, attends: false, layers: &[KvLayerKind::Latent], row: LATENT_ROW }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::LatentStore)
    }

    fn folds(&self) -> Folds {
        Folds { norm: NormFold::OwnRows, rope: true, ..Folds::default() }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        NodeCost { weight_bytes: 0.0, cache_bytes: at.rows * at.kv_row_bytes, flops: 0.0, link_bytes: 0.0 }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            cache_bytes: "rows*kv_row_bytes",
            ..OpReference::new(
                "Stores each row's latent and rotated key in the KV cache: the partial_rope_concat of a latent cache. Norm and \
             rotation are usually folded into it.",
                "cache[p] ← [c | k_rope]",
                MLA,
            )
        }
    }
}
