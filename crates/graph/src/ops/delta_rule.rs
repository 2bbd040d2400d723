//! `delta_rule`: the recurrence of Kimi Delta Attention.

use super::shared::KDA;
use super::{
    CostInput, KvLayerKind, KvUse, NodeCost, OpReference, Operation, Outputs, Port, RequiredKernels,
    ShapeRule,
};
use latent_types::OpKind;

/// The recurrence over the matrix of each head.
pub(super) struct DeltaRule;

const HEADS: &str = "rows × kda_heads × kda_width";

impl Operation for DeltaRule {
    fn name(&self) -> &'static str {
        "delta_rule"
    }

    fn inputs(&self) -> &'static [Port] {
        const {
            &[
                Port::f32("q", HEADS),
                Port::f32("k", HEADS),
                Port::f32("v", HEADS),
                Port::f32("log_decay", HEADS),
                Port::f32("beta_raw", "rows × kda_heads"),
            ]
        }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("o", HEADS)] })
    }

    fn kv(&self) -> KvUse {
        let row = "kda_heads × kda_width × kda_width elements of f32 per sequence, rows by key and columns by value";
        KvUse { stores: true, attends: true, layers: &[KvLayerKind::DeltaState], row }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::Own(OpKind::DeltaRule)
    }

    fn by_heads(&self) -> bool {
        true
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Attention
    }

    /// The state is read and written once for each sequence, whatever the number of its rows.
    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        let width = at.width(0);
        NodeCost {
            weight_bytes: 0.0,
            cache_bytes: 2.0 * at.sequences * at.kv_row_bytes,
            flops: 7.0 * at.rows * at.heads * width * width,
            link_bytes: 0.0,
        }
    }

    fn reference(&self) -> OpReference {
        OpReference {
            cache_bytes: "2*sequences*kv_row_bytes",
            flops: "7*rows*kda_heads*kda_width*kda_width",
            ..OpReference::new(
                "The delta rule with a decay for each row of the state. Row after row of a sequence, the state fades, what it predicts for the \
                 key is compared with the value, and a part β of the difference is stored under the key. The state of a sequence is read and \
                 replaced.",
                "S ← diag(e^g) S;  u = β · (v − Sᵀk);  S ← S + k uᵀ;  o = Sᵀq,  β = σ(beta_raw)",
                KDA,
            )
        }
    }
}
