//! Sparse attention: the selection of the positions that a row attends to.

use super::operation::*;
use super::port::*;
use super::shapes::ShapeRule;
use super::shared::*;

/// The stored key, before its norm.
const INDEX_K: Port = Port::f32("index_k", "rows × index_width");

pub(super) const INDEX_STORE: Operation = Operation {
    name: "index_store",
    inputs: &[INDEX_K],
    outputs: Outputs::Ports(&[]),
    slots: &[
        WeightSlot::new("index_k_norm", "index_width"),
        WeightSlot::new("index_k_norm_bias", "index_width"),
    ],
    weights_fit: |weights| {
        if weights.count == 2 { Ok(()) } else { Err("weight and bias of a LayerNorm") }
    },
    kv: KvUse {
        stores: true,
        layers: &[KvLayerKind::Index],
        row: "index_width elements per row",
        ..KvUse::NONE
    },
    shape_rule: ShapeRule::Attention,
    cost: |at| NodeCost { cache_bytes: at.rows * at.kv_row_bytes, ..NodeCost::default() },
    reference: OpReference {
        cache_bytes: "rows*kv_row_bytes",
        ..OpReference::new(
            "Stores each row's key of the indexer: LayerNorm with weight and bias (ε 10⁻⁶), then the first rope elements rotated to the \
                 row's position.",
            "cache[p] ← R(p) ((k − mean k) / √(var k + ε) · w + b)",
            DSA,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const INDEX_SELECT: Operation = Operation {
    name: "index_select",
    inputs: &[
        Port::f32("index_q", "rows × index_heads*index_width").with_note("not rotated yet"),
        Port::f32("index_weights", "rows × index_heads"),
    ],
    outputs: Outputs::Ports(&[Port { optional: false, ..SELECTED }]),
    kv: KvUse {
        attends: true,
        layers: &[KvLayerKind::Index],
        row: "index_width elements per row",
        ..KvUse::NONE
    },
    shape_rule: ShapeRule::Attention,
    cost: |at| {
        // A dot product per head and a weighted sum over heads, for each pair of a row and a cached
        // token.
        let flops = 2.0 * at.pairs * (at.width(0) + at.width(1));
        NodeCost { cache_bytes: at.kv_len * at.kv_row_bytes, flops, ..NodeCost::default() }
    },
    reference: OpReference {
        cache_bytes: "kv_len*kv_row_bytes",
        flops: "2*pairs*(index_heads*index_width+index_heads)",
        ..OpReference::new(
            "The lightning indexer: rotates the first rope elements of each of its query heads, scores all cached tokens up to the row's \
                 own, and selects the index_topk tokens of the largest scores; of equal ones the earliest. Rows that see no more tokens \
                 attend to all of them.",
            "sⱼ = Σₕ wₕ · max(0, qₕ · kⱼ) / √(index_width · index_heads);  selected = top-kⱼ sⱼ, ascending",
            DSA,
        )
    },
    ..Operation::DEFAULT
};
