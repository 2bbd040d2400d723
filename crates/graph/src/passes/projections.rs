//! Fusion of projections with a common input: q_a with kv_a, gate with up.

use super::remove;
use crate::ir::{Ir, Op};

/// Linear maps of one layer with the same input become one node with several weights. Gate and up
/// of an MLP fuse only with each other, because an epilogue combines their results.
pub fn fuse_projections(mut ir: Ir) -> Ir {
    let mut at = 0;
    while at < ir.nodes.len() {
        if ir.nodes[at].op == Op::Linear {
            let mut next = at + 1;
            while next < ir.nodes.len() {
                if fits(&ir, at, next) {
                    let other = remove(&mut ir, next);
                    ir.nodes[at].outputs.extend(other.outputs);
                    ir.nodes[at].weights.extend(other.weights);
                } else {
                    next += 1;
                }
            }
        }
        at += 1;
    }
    ir
}

fn fits(ir: &Ir, first: usize, second: usize) -> bool {
    let (a, b) = (&ir.nodes[first], &ir.nodes[second]);
    b.op == Op::Linear
        // Only within one layer, because a node belongs to one.
        && (a.inputs == b.inputs && a.layer == b.layer && a.path == b.path)
        // Gate and up have the same SiLU node. Projections without one have none, and fuse with
        // each other.
        && activation_of(ir, first) == activation_of(ir, second)
}

/// The SiLU node that combines the outputs of the linear map at `index`, if any.
fn activation_of(ir: &Ir, index: usize) -> Option<usize> {
    let readers = ir.readers(ir.nodes[index].outputs[0]);
    readers.into_iter().find(|&n| ir.nodes[n].op == Op::SiluMul)
}
