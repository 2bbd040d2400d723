//! Folds activations and residual sums into the matmuls that produce their inputs.

use super::{overwritten, remove};
use crate::ir::{Epilogue, Ir, Op, ValueId};
use std::ops::Range;

/// The thread that computed an output also applies SiLU·up or ReLU² to it, or adds it to the
/// residual, while the output is in registers or cache.
pub fn fold_epilogues(ir: Ir) -> Ir {
    fold_sums(spread_sums(fold_activations(ir)))
}

fn fold_activations(mut ir: Ir) -> Ir {
    let mut at = 0;
    while at < ir.nodes.len() {
        let epilogue = match ir.nodes[at].op {
            Op::SiluMul => Epilogue::SiluMul,
            Op::Relu2 => Epilogue::Relu2,
            _ => Epilogue::None,
        };
        let inputs = ir.nodes[at].inputs.clone();
        // `outputs == inputs` holds after `fuse_projections` only: gate and up must be one node, in
        // this order.
        let maker = ir.nodes.iter().position(|n| {
            n.op.spec().folds.activation && n.outputs == inputs && n.epilogue == Epilogue::None
        });
        // The unactivated values disappear, so no other node may read them.
        let only_reader = inputs.iter().all(|&v| ir.readers(v).len() == 1);
        match (epilogue, maker) {
            (Epilogue::SiluMul | Epilogue::Relu2, Some(maker)) if only_reader => {
                let activation = remove(&mut ir, at);
                ir.nodes[maker].outputs = activation.outputs;
                ir.nodes[maker].epilogue = epilogue;
            }
            _ => at += 1,
        }
    }
    ir
}

/// Rewrites `a + s·(b + c)` as `(a + s·b) + s·c`, so that both sums can be folded (routed and
/// shared experts).
fn spread_sums(mut ir: Ir) -> Ir {
    for outer in 0..ir.nodes.len() {
        let Op::Add { scale } = ir.nodes[outer].op else { continue };
        let sum = ir.nodes[outer].inputs[1];
        let Some(inner) = ir.maker(sum) else { continue };
        // A factor on the inner sum could not move outward without another rounding.
        if ir.nodes[inner].op != (Op::Add { scale: 1.0 }) || ir.readers(sum).len() != 1 {
            continue;
        }
        let base = ir.nodes[outer].inputs[0];
        // The first sum overwrites `a` earlier than before, so no node in between may use `a`.
        if used(&ir, base, inner + 1..outer) {
            continue;
        }
        let (first, second) = (ir.nodes[inner].inputs[0], ir.nodes[inner].inputs[1]);
        let storage = ir.value(ir.nodes[outer].outputs[0]).storage;
        // The inner sum now accumulates in the residual stream.
        ir.values[sum.0].storage = storage;
        ir.nodes[inner].inputs = vec![base, first];
        ir.nodes[inner].op = Op::Add { scale };
        ir.nodes[outer].inputs = vec![sum, second];
    }
    ir
}

/// Whether one of these nodes reads or writes memory of `value`.
fn used(ir: &Ir, value: ValueId, mut nodes: Range<usize>) -> bool {
    let root = ir.root(value);
    nodes.any(|n| {
        let node = &ir.nodes[n];
        node.inputs.iter().chain(&node.outputs).any(|id| ir.root(*id) == root)
    })
}

fn fold_sums(mut ir: Ir) -> Ir {
    let mut at = 0;
    while at < ir.nodes.len() {
        match ir.nodes[at].op {
            Op::Add { scale } if foldable(&ir, ir.nodes[at].inputs[1], at) => {
                let add = remove(&mut ir, at);
                let maker = ir.maker(add.inputs[1]);
                if let Some(maker) = maker {
                    // Removed and inserted later in the list, instead of changed in place.
                    let mut node = remove(&mut ir, maker);
                    node.inputs.push(add.inputs[0]);
                    node.outputs = add.outputs;
                    node.epilogue = Epilogue::AddTo(scale);
                    // The node now reads the other operand of the sum, so it takes the sum's
                    // position in the order.
                    let place = if maker < at { at - 1 } else { at };
                    ir.nodes.insert(place, node);
                }
            }
            _ => at += 1,
        }
    }
    ir
}

/// Whether the matmul that produces `term` may add it to the sum itself. `sum` must be the only
/// reader of `term`. No node up to and including the sum may overwrite the matmul's inputs: threads
/// add to their own columns while others still read.
fn foldable(ir: &Ir, term: ValueId, sum: usize) -> bool {
    let Some(maker) = ir.maker(term) else { return false };
    let node = &ir.nodes[maker];
    node.op.spec().folds.sum
        && node.epilogue == Epilogue::None
        && node.outputs.len() == 1
        && ir.readers(term) == [sum]
        && !node.inputs.iter().any(|input| overwritten(ir, *input, maker + 1..sum + 1))
}
