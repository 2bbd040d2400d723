//! `expert_down`: second half of the routed experts.

use super::shared::{EXPERT_DOWN, EXPERTS, SORTED, TOPK_IDS, TOPK_WEIGHTS, experts_cost, one_weight};
use super::{
    CostInput, Folds, KernelRows, NodeCost, NodeMaker, NodeWeights, OpReference, Operation, Outputs, Port,
    RequiredKernels, ShapeRule, WeightSlot,
};
use latent_types::OpKind;

/// Down projection of every (row, expert), and their weighted sum.
pub(super) struct ExpertDown;

impl Operation for ExpertDown {
    fn name(&self) -> &'static str {
        "expert_down"
    }

    fn made_by(&self) -> NodeMaker {
        NodeMaker::Pass("group_experts")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[SORTED, TOPK_IDS, TOPK_WEIGHTS] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × hidden")] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[EXPERT_DOWN] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        one_weight(weights)
    }

    fn kernels(&self) -> RequiredKernels {
        RequiredKernels::PerWeight(|_| OpKind::Linear, &[])
    }

    fn kernel_rows(&self) -> KernelRows {
        KernelRows::PartOfBucket
    }

    fn folds(&self) -> Folds {
        Folds { sum: true, ..Folds::default() }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Experts
    }

    fn cost(&self, at: &CostInput<'_>) -> NodeCost {
        experts_cost(at)
    }

    fn reference(&self) -> OpReference {
        OpReference {
            weight_bytes: "reached*expert_bytes",
            flops: "2*rows*num_experts_per_tok*expert_weights",
            ..OpReference::new(
                "Second half of the experts and their sum, in ascending order of experts.",
                "y[r] = Σₑ topk_weights[r,e] · W_down,ₑ a[r,e]",
                EXPERTS,
            )
        }
    }
}
