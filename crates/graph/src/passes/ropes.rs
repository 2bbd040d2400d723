//! Folds rotations into their readers.

use super::remove;
use crate::ir::{Ir, Op};

/// The cache store rotates the key that it writes, and `absorb_k` the query that it copies. Neither
/// rotation then needs its own phase.
pub fn fold_ropes(mut ir: Ir) -> Ir {
    let mut at = 0;
    while at < ir.nodes.len() {
        if ir.nodes[at].op == Op::Rope {
            let rotated = ir.nodes[at].outputs[0];
            // A second reader would need the rotated value too.
            if let [reader] = ir.readers(rotated)[..]
                && ir.nodes[reader].op.spec().folds.rope
                && ir.nodes[reader].inputs[1] == rotated
            {
                ir.nodes[reader].inputs[1] = ir.nodes[at].inputs[0];
                ir.nodes[reader].prologue.rope = true;
                remove(&mut ir, at);
                continue;
            }
        }
        at += 1;
    }
    ir
}
