//! Folding of RMSNorm into the prologue of what reads it.

use super::{RowClass, remove};
use crate::ir::{Ir, Op};

/// A normalised value that only matrix products and cache stores read is not stored: each of them normalises as it reads.
/// For many rows that would be repeated by every thread, so that there only the cache store, which owns its rows, does it.
pub fn fold_norms(mut ir: Ir, class: RowClass) -> Ir {
    let mut at = 0;
    while at < ir.nodes.len() {
        if ir.nodes[at].op == Op::RmsNorm && folds(&ir, at, class) {
            let norm = remove(&mut ir, at);
            for node in &mut ir.nodes {
                if node.inputs.first() == norm.outputs.first() {
                    node.inputs[0] = norm.inputs[0];
                    node.prologue.norm = norm.weights.first().map(|(_, id)| *id);
                }
            }
        } else {
            at += 1;
        }
    }
    ir
}

fn folds(ir: &Ir, at: usize, class: RowClass) -> bool {
    let value = ir.nodes[at].outputs[0];
    let readers = ir.readers(value);
    let is_output = ir.outputs.iter().any(|(_, id)| *id == value);
    !readers.is_empty()
        && !is_output
        && readers.iter().all(|&n| {
            let node = &ir.nodes[n];
            let owns_rows = node.op == Op::LatentStore;
            let reads_first = node.inputs[0] == value && !node.inputs[1..].contains(&value);
            let multiplies = matches!(node.op, Op::Linear | Op::ExpertGateUp);
            reads_first
                && node.prologue.norm.is_none()
                && (owns_rows || (multiplies && class != RowClass::Many))
        })
}
