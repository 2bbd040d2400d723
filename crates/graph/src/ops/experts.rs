//! Routing, and the routed experts.

use super::operation::*;
use super::port::*;
use super::shapes::{NodeShapes, ShapeRule, WeightShape};
use super::shared::*;
use latent_types::OpKind;

const W_GATE: WeightSlot = WeightSlot::new("expert_gate", "own_experts × moe_ffn × hidden");
const W_UP: WeightSlot = WeightSlot::new("expert_up", "own_experts × moe_ffn × hidden");
const W_GATE_UP: WeightSlot = WeightSlot::new("expert_gate_up", "own_experts × 2 * moe_ffn × hidden")
    .with_note("both in one, instead of them");
const W_DOWN: WeightSlot = WeightSlot::new("expert_down", "own_experts × hidden × moe_ffn");

/// Matrices of adapters, in slots with the names of their weights before these.
const W_LORA_A: WeightSlot = WeightSlot::new("lora_a", "own_experts × lora_rank × inputs")
    .with_note("of each adapter of a weight, named after it: expert_up_lora_a");
const W_LORA_B: WeightSlot = WeightSlot::new("lora_b", "own_experts × outputs × lora_rank");

pub(super) const ROUTE: Operation = Operation {
    name: "route",
    inputs: &[Port::f32("logits", "rows × experts")],
    outputs: Outputs::Ports(&[TOPK_IDS, TOPK_WEIGHTS]),
    slots: &[WeightSlot::new("router_bias", "experts").with_note("optional")],
    weights_fit: |weights| {
        if weights.count <= 1 { Ok(()) } else { Err("none or a bias") }
    },
    kernels: RequiredKernels::Own(OpKind::Route),
    shape_rule: ShapeRule::Experts,
    reference: OpReference::new(
        "Selects experts by the router's rules (gating, groups, bias, normalization, scale: see `RouterSpec`).",
        "S = gate(x · Wᵀ);  topk_ids = top-k(S + bias) in the best groups;  topk_weights = scale · S / Σ S over topk_ids",
        EXPERTS,
    ),
    ..Operation::DEFAULT
};

pub(super) const EXPERT_MLP: Operation = Operation {
    name: "expert_mlp",
    lowered_by: Some("group_experts"),
    inputs: &[Port::f32("x", "rows × hidden"), TOPK_IDS, TOPK_WEIGHTS],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × hidden")]),
    slots: &[W_GATE, W_UP, W_GATE_UP, W_DOWN, W_LORA_A, W_LORA_B],
    weights_fit: |weights| {
        // Two if gate and up are one tensor.
        if matches!(weights.count, 2 | 3) { Ok(()) } else { Err("gate, up and down") }
    },
    shape_rule: ShapeRule::Experts,
    check: adapters_fit,
    reference: OpReference::new(
        "The routed experts as the circuit says it. `group_experts` makes `expert_gate_up` and `expert_down` of it.",
        "y = Σₑ topk_weightsₑ · W_down,ₑ (silu(W_gate,ₑ x) ⊙ W_up,ₑ x)",
        EXPERTS,
    ),
    ..Operation::DEFAULT
};

pub(super) const EXPERT_GATE_UP: Operation = Operation {
    name: "expert_gate_up",
    made_by: NodeMaker::Pass("group_experts"),
    inputs: &[Port::f32("x", "rows × hidden"), TOPK_IDS],
    outputs: Outputs::Ports(&[SORTED]),
    slots: &[W_GATE, W_UP, W_GATE_UP, W_LORA_A, W_LORA_B],
    weights_fit: |weights| {
        if matches!(weights.count, 1 | 2) { Ok(()) } else { Err("gate and up, or both in one") }
    },
    kernels: RequiredKernels::PerWeight(|_| OpKind::Linear, &[]),
    kernel_rows: KernelRows::PartOfBucket,
    // Every thread normalizes the rows for itself, which is cheaper than a phase for the norm.
    folds: Folds { norm: NormFold::EachThread, ..Folds::NONE },
    shape_rule: ShapeRule::Experts,
    // One weight contains gate and up; two are one each.
    check: |node| {
        let own = |weight: &&WeightShape<'_>| adapted_slot(weight.slot).is_none();
        let own: Vec<_> = node.weights.iter().filter(own).copied().collect();
        let (out, fused) = (node.outputs[0].row_width(), own.len() == 1);
        for weight in own {
            let gives = weight.outputs();
            // Both shapes are valid slots, so only the combination with the number of weights is
            // wrong.
            if (fused && gives == out) || (!fused && gives == 2 * out) {
                let expected = if fused { 2 * out } else { out };
                let text = format!("the weight gives {gives} elements, expected {expected}");
                node.wrong(ShapeRule::Gives, weight.slot.to_owned(), text);
            }
        }
        adapters_fit(node);
    },
    cost: experts_cost,
    reference: OpReference {
        weight_bytes: "reached*expert_bytes",
        flops: "2*rows*num_experts_per_tok*expert_weights",
        ..OpReference::new(
            "First half of the experts: rows sorted by expert, each expert's weights read once.",
            "a[r,e] = silu(W_gate,ₑ x) ⊙ W_up,ₑ x",
            EXPERTS,
        )
    },
    ..Operation::DEFAULT
};

pub(super) const EXPERT_DOWN: Operation = Operation {
    name: "expert_down",
    made_by: NodeMaker::Pass("group_experts"),
    inputs: &[SORTED, TOPK_IDS, TOPK_WEIGHTS],
    outputs: Outputs::Ports(&[Port::f32("y", "rows × hidden")]),
    slots: &[W_DOWN, W_LORA_A, W_LORA_B],
    weights_fit: one_weight,
    kernels: RequiredKernels::PerWeight(|_| OpKind::Linear, &[]),
    kernel_rows: KernelRows::PartOfBucket,
    folds: Folds { sum: true, ..Folds::NONE },
    shape_rule: ShapeRule::Experts,
    check: adapters_fit,
    cost: experts_cost,
    reference: OpReference {
        weight_bytes: "reached*expert_bytes",
        flops: "2*rows*num_experts_per_tok*expert_weights",
        ..OpReference::new(
            "Second half of the experts and their sum, in ascending order of experts.",
            "y[r] = Σₑ topk_weights[r,e] · W_down,ₑ a[r,e]",
            EXPERTS,
        )
    },
    ..Operation::DEFAULT
};

/// Checks that A and B of each adapter are for the weight that their slots name.
fn adapters_fit(node: &mut NodeShapes<'_>) {
    let matrices = node.weights.iter().filter(|weight| adapted_slot(weight.slot).is_some());
    let matrices: Vec<WeightShape<'_>> = matrices.copied().collect();
    // A and B of an adapter are adjacent.
    for pair in matrices.chunks(2) {
        let of = adapted_slot(pair[0].slot);
        let weight = node.weights.iter().find(|weight| Some(weight.slot) == of).map(|weight| weight.shape);
        let fits = match (pair, weight) {
            ([a, b], Some([experts, outputs, inputs])) => {
                adapted_slot(b.slot) == of
                    && a.shape == [*experts, b.inputs(), *inputs]
                    && b.shape == [*experts, *outputs, a.outputs()]
            }
            _ => false,
        };
        if !fits {
            let shapes: Vec<_> = pair.iter().map(|matrix| matrix.shape).collect();
            let text = format!("A and B of shapes {shapes:?} are for a weight of shape {weight:?}");
            node.wrong(ShapeRule::Experts, pair[0].slot.to_owned(), text);
        }
    }
}

/// Products of grouped experts, with the bytes of the experts that the rows reach under uniform
/// routing. `topk_ids` is the second input.
fn experts_cost(at: &CostInput<'_>) -> NodeCost {
    let mut cost = NodeCost::default();
    // A row of `topk_ids` has an element per expert that the row is routed to.
    let per_row = if at.widths.len() > 1 { at.width(1) } else { 1.0 };
    for weight in &at.weights {
        let experts = weight.matrices.max(1.0);
        // Expected number of distinct experts for uniform, independent routing.
        let reached = experts * (1.0 - (1.0 - (per_row / experts).min(1.0)).powf(at.rows));
        cost.weight_bytes += weight.bytes * reached / experts;
        cost.flops += 2.0 * weight.elements / experts * per_row * at.rows;
    }
    cost
}
