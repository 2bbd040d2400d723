//! `expert_gate_up`: first half of the routed experts.

use super::shared::{EXPERT_GATE, EXPERT_GATE_UP, EXPERT_UP, EXPERTS, SORTED, TOPK_IDS, experts_cost};
use super::{
    CostInput, Folds, KernelRows, NodeCost, NodeMaker, NodeShapes, NodeWeights, NormFold, OpReference,
    Operation, Outputs, Port, RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// Gate, up and activation of every (row, expert).
pub(super) struct ExpertGateUp;

impl Operation for ExpertGateUp {
    fn name(&self) -> &'static str {
        "expert_gate_up"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("group_experts")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("x", "rows × hidden"), TOPK_IDS] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[SORTED] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[EXPERT_GATE, EXPERT_UP, EXPERT_GATE_UP] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        if matches!(weights.count, 1 | 2) { Ok(()) } else { Err("gate and up, or both in one") }
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::PerWeight(|_| OpKind::Linear, &[])
    }

    fn kernel_rows(&self) -> KernelRows {
        KernelRows::PartOfBucket
    }

    fn folds(&self) -> Folds {
        Folds { norm: NormFold::EachThread, ..Folds::default() }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Experts
    }

    /// One weight is gate and up in one, two are one of each.
    fn check(&self, node: &mut NodeShapes<'_>) {
        let (out, fused) = (node.outputs[0].row_width(), node.weights.len() == 1);
        for weight in node.weights.clone() {
            let gives = weight.outputs();
            if (fused && gives == out) || (!fused && gives == 2 * out) {
                let expected = if fused { 2 * out } else { out };
                let text = format!("the weight gives {gives} elements, expected {expected}");
                node.wrong(ShapeRule::Gives, weight.slot.to_owned(), text);
            }
        }
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        experts_cost(at)
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "reached*expert_bytes",
            flops: "2*rows*num_experts_per_tok*expert_weights",
            ..OpReference::new(
                "First half of the experts: rows sorted by expert, each expert's weights read once.",
                "a[r,e] = silu(W_gate,ₑ x) ⊙ W_up,ₑ x",
                EXPERTS,
            )
        }
    }
}
