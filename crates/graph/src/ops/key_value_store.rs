//! `key_value_store`: keys and values of every head into the KV cache.

use super::shared::MLA;
use super::{
    CostInput, KvLayerKind, KvUse, NodeCost, NodeMaker, OpReference, Operation, Outputs, Port, ShapeRule,
};

/// Stores keys and values that are already expanded.
pub(super) struct KeyValueStore;

impl Operation for KeyValueStore {
    fn name(&self) -> &'static str {
        "key_value_store"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("expand_stores")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("key", "rows × heads × (nope + rope)"), Port::f32("value", "rows × heads × v")] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(&[])
    }

    fn kv(&self) -> KvUse {
        KvUse {
            stores: true,
            attends: false,
            layers: &[KvLayerKind::Expanded],
            row: "heads · (nope + rope + v) elements per row",
        }
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
                "Stores each row's keys and values of every head in the KV cache.",
                "cache[p] ← [key | v] of every head",
                MLA,
            )
        }
    }
}
