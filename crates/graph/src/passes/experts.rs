//! Grouping of experts: the sum over a row's experts becomes two operations over rows that are
//! sorted by expert.

use crate::ir::{Ir, Node, Op, RowCount, Value, ValueStorage};
use crate::ops::adapted_slot;
use latent_types::ValueType;

/// Lowers every `expert_mlp` into gate·up and down, with the activations of each (row, expert) pair
/// between them.
pub fn group_experts(mut ir: Ir) -> Ir {
    while let Some(at) = ir.nodes.iter().position(|node| node.op == Op::ExpertMlp) {
        let expert = ir.nodes.remove(at);
        let (x, topk_ids, topk_weights) = (expert.inputs[0], expert.inputs[1], expert.inputs[2]);
        // Adapter matrices go with the weight that they change.
        let is_down = |slot: &str| adapted_slot(slot).unwrap_or(slot) == "expert_down";
        let (down, gate_up): (Vec<_>, Vec<_>) =
            expert.weights.into_iter().partition(|(slot, _)| is_down(slot));
        let width = down.first().map_or(0, |(_, id)| ir.weight(*id).inputs());
        let activated = ir.add_value(Value {
            name: "expert_activated".into(),
            layer: expert.layer,
            dtype: ValueType::F32,
            // One row per selected expert of each row, sorted by expert so that each weight is read
            // once.
            rows: RowCount::Times(ir.value(topk_ids).width),
            heads: 1,
            width,
            storage: ValueStorage::Own,
        });
        let mut first = Node::new(Op::ExpertGateUp, expert.layer, vec![x, topk_ids], vec![activated]);
        first.weights = gate_up;
        let mut second =
            Node::new(Op::ExpertDown, expert.layer, vec![activated, topk_ids, topk_weights], expert.outputs);
        second.weights = down;
        ir.nodes.splice(at..at, [first, second]);
    }
    ir
}
