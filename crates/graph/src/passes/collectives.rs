//! Inserts communication between ranks: sums of partial values, and rows of the residual stream at
//! the ends of a rank's layers.

use crate::config::RankPart;
use crate::ir::{Ir, Node, Op, Value, ValueId, ValueStorage};

/// Adds a rank's collectives. A matmul whose other inputs are on other ranks, or a sum over a
/// rank's own experts, gives a term. Terms are added up over ranks before anything reads them. The
/// sum of two terms is a term itself, so attention's output and shared plus routed experts need one
/// all-reduce each.
pub fn insert_collectives(mut ir: Ir, part: &RankPart) -> Ir {
    if part.members.len() > 1 {
        add_up_terms(&mut ir, part);
    }
    // The previous rank's rows replace the residual stream before the first node reads it.
    if part.receives_from.is_some()
        && let Some(entering) = entering(&ir)
    {
        overwrite(&mut ir, Op::ReceiveRows, entering, 0, None);
    }
    // A span that ends in logits (rank 0's head) has no rows to send.
    let result = ir.outputs.first().filter(|(name, _)| name == "hidden").map(|(_, id)| *id);
    let Some(result) = result else { return ir };
    if part.sends_to.is_some() {
        ir.nodes.push(Node::new(Op::SendRows, None, vec![result], Vec::new()));
    }
    // Rank 0 computes logits from the rows after the last layer, which another rank has.
    if part.returned_by.is_some() {
        let end = ir.nodes.len();
        overwrite(&mut ir, Op::ReceiveRows, result, end, None);
    }
    ir
}

/// The value of the residual stream that enters the span.
fn entering(ir: &Ir) -> Option<ValueId> {
    let ids = (0..ir.values.len()).map(ValueId);
    ids.into_iter().find(|id| ir.value(*id).storage == ValueStorage::Hidden && ir.maker(*id).is_none())
}

/// Inserts at `at` a node that overwrites `value`. Later nodes and the span's results read the new
/// value.
fn overwrite(ir: &mut Ir, op: Op, value: ValueId, at: usize, layer: Option<usize>) -> ValueId {
    let storage = ValueStorage::View { of: value, offset: 0 };
    let made = ir.add_value(Value { storage, ..ir.value(value).clone() });
    for node in &mut ir.nodes[at..] {
        node.inputs.iter_mut().filter(|id| **id == value).for_each(|id| *id = made);
    }
    ir.outputs.iter_mut().filter(|(_, id)| *id == value).for_each(|(_, id)| *id = made);
    ir.nodes.insert(at, Node::new(op, layer, vec![value], vec![made]));
    made
}

fn add_up_terms(ir: &mut Ir, part: &RankPart) {
    let mut terms: Vec<ValueId> = Vec::new();
    let mut at = 0;
    while at < ir.nodes.len() {
        let node = &ir.nodes[at];
        let read: Vec<ValueId> = node.inputs.iter().copied().filter(|id| terms.contains(id)).collect();
        // Only if both inputs are terms. A term plus the residual stream would add the residual
        // once per rank.
        let sum = matches!(node.op, Op::Add { .. }) && read.len() == node.inputs.len();
        if !sum && let Some(term) = read.first() {
            let layer = node.layer;
            terms.retain(|id| id != term);
            overwrite(ir, Op::AllReduce, *term, at, layer);
            // The reader moved behind the inserted node and is visited again, as it may read a
            // second term.
            at += 1;
            continue;
        }
        if sum || gives_terms(ir, node, part) {
            terms.retain(|id| !node.inputs.contains(id));
            terms.extend(&node.outputs);
        }
        at += 1;
    }
}

fn gives_terms(ir: &Ir, node: &Node, part: &RankPart) -> bool {
    let cut = node.weights.iter().any(|(_, id)| ir.weight(*id).gives_terms());
    match node.op {
        Op::Linear => cut,
        // `group_experts` runs later, so the experts of a layer are still one node.
        Op::ExpertMlp => cut || !part.experts.is_all(),
        _ => false,
    }
}
