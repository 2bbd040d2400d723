//! `index_store`: keys of an indexer into the KV cache.

use super::shared::DSA;
use super::{
    CostInput, KvLayerKind, KvUse, NodeCost, NodeWeights, OpReference, Operation, Outputs, Port,
    RequiredKernels, ShapeRule, WeightSlot,
};

/// Stores an indexer's keys, normalized and rotated.
pub(super) struct IndexStore;

/// The stored key, before its norm.
const INDEX_K: Port = Port::f32("index_k", "rows × index_width");

impl Operation for IndexStore {
    fn name(&self) -> &'static str {
        "index_store"
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[INDEX_K] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[])
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const {
            &[
                WeightSlot::new("index_k_norm", "index_width"),
                WeightSlot::new("index_k_norm_bias", "index_width"),
            ]
        }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        if weights.count == 2 { Ok(()) } else { Err("weight and bias of a LayerNorm") }
    }

    fn kv(&self) -> KvUse {
        let layers = &[KvLayerKind::Index];
        KvUse { stores: true, attends: false, layers, row: "index_width elements per row" }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::None
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        NodeCost { cache_bytes: at.rows * at.kv_row_bytes, ..NodeCost::default() }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            cache_bytes: "rows*kv_row_bytes",
            ..OpReference::new(
                "Stores each row's key of the indexer: LayerNorm with weight and bias (ε 10⁻⁶), then the first rope elements rotated to the \
                 row's position.",
                "cache[p] ← R(p) ((k − mean k) / √(var k + ε) · w + b)",
                DSA,
            )
        }
    }
}
