//! `expert_mlp`: the routed experts, before grouping.

use super::shared::{EXPERT_DOWN, EXPERT_GATE, EXPERT_GATE_UP, EXPERT_UP, EXPERTS, TOPK_IDS, TOPK_WEIGHTS};
use super::{NodeWeights, OpReference, Operation, Outputs, Port, ShapeRule, WeightSlot};

/// The routed experts as a circuit says it.
pub(super) struct ExpertMlp;

impl Operation for ExpertMlp {
    fn name(&self) -> &'static str {
        "expert_mlp"
    }

    fn lowered_by(&self) -> Option<&'static str> {
        Some("group_experts")
    }

    fn inputs(&self) -> &'static [Port] {
        const { &[Port::f32("x", "rows × hidden"), TOPK_IDS, TOPK_WEIGHTS] }
    }

    fn outputs(&self) -> Outputs {
        Outputs::Ports(const { &[Port::f32("y", "rows × hidden")] })
    }

    fn slots(&self) -> &'static [WeightSlot] {
        const { &[EXPERT_GATE, EXPERT_UP, EXPERT_GATE_UP, EXPERT_DOWN] }
    }

    fn weights_fit(&self, weights: &NodeWeights) -> Result<(), &'static str> {
        if matches!(weights.count, 2 | 3) { Ok(()) } else { Err("gate, up and down") }
    }

    fn shape_rule(&self) -> ShapeRule {
        ShapeRule::Experts
    }

    fn reference(&self) -> OpReference {
        OpReference::new(
            "The routed experts as the circuit says it. `group_experts` makes `expert_gate_up` and `expert_down` of it.",
            "y = Σₑ topk_weightsₑ · W_down,ₑ (silu(W_gate,ₑ x) ⊙ W_up,ₑ x)",
            EXPERTS,
        )
    }
}
