//! `index_select`: the tokens that rows attend to.

use super::shared::{DSA, SELECTED};
use super::{
    CostInput, KvLayerKind, KvUse, NodeCost, OpReference, Operation, Outputs, Port, RequiredKernels,
    ShapeRule,
};

/// The lightning indexer: scores of all cached tokens, and the positions of the largest.
pub(super) struct IndexSelect;

impl Operation for IndexSelect {
    fn name(&self) -> &'static str {
        "index_select"
    }

    fn inputs(&self) -> &'static [Port] {
        const {
            &[
                Port::f32("index_q", "rows × index_heads*index_width").with_note("not rotated yet"),
                Port::f32("index_weights", "rows × index_heads"),
            ]
        }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port { optional: false, ..SELECTED }] })
    }

    fn kv(&self) -> KvUse {
        let layers = &[KvLayerKind::Index];
        KvUse { stores: false, attends: true, layers, row: "index_width elements per row" }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::None
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        // a product and a weighted sum for each pair of a row and a cached token
        let flops = 2.0 * at.pairs * (at.width(0) + at.width(1));
        NodeCost { cache_bytes: at.kv_len * at.kv_row_bytes, flops, ..NodeCost::default() }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            cache_bytes: "kv_len*kv_row_bytes",
            flops: "2*pairs*(index_heads*index_width+index_heads)",
            ..OpReference::new(
                "The lightning indexer: rotates the first rope elements of each of its query heads, scores all cached tokens up to the row's \
                 own, and selects the index_topk tokens of the largest scores; of equal ones the earliest. Rows that see no more tokens \
                 attend to all of them.",
                "sⱼ = Σₕ wₕ · max(0, qₕ · kⱼ) / √(index_width · index_heads);  selected = top-kⱼ sⱼ, ascending",
                DSA,
            )
        }
    }
}
