//! Folds RMSNorm into the prologues of its readers.

use super::{BatchBucket, overwritten, remove};
use crate::ir::{Ir, Op};
use crate::ops::NormFold;

/// A normalized value that only matmuls and cache stores read is not stored: each reader normalizes
/// its own input. In a matmul every thread repeats the norm, which does not pay in prefill; there
/// only cache stores fold it, because each of their threads owns its rows. The norm stays if its
/// input is overwritten before the last reader, as residual sums do.
pub fn fold_norms(mut ir: Ir, bucket: BatchBucket) -> Ir {
    let mut at = 0;
    while at < ir.nodes.len() {
        if ir.nodes[at].op == Op::RmsNorm && is_foldable(&ir, at, bucket) {
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

fn is_foldable(ir: &Ir, at: usize, bucket: BatchBucket) -> bool {
    let value = ir.nodes[at].outputs[0];
    let source = ir.nodes[at].inputs[0];
    let readers = ir.readers(value);
    // Results of a span must exist as values.
    let is_output = ir.outputs.iter().any(|(_, id)| *id == value);
    !readers.is_empty()
        && !is_output
        && readers.iter().all(|&n| {
            let node = &ir.nodes[n];
            // A prologue normalizes the first input only. A node that also reads the value
            // elsewhere would get it raw.
            let reads_first = node.inputs[0] == value && !node.inputs[1..].contains(&value);
            let pays = match node.op.spec().folds.norm {
                NormFold::No => false,
                NormFold::OwnRows => true,
                NormFold::EachThread => bucket != BatchBucket::Prefill,
            };
            // One prologue norm per node.
            reads_first && node.prologue.norm.is_none() && !overwritten(ir, source, at + 1..n) && pays
        })
}

#[cfg(test)]
mod tests {
    use super::super::snapshots::{config, lowered_of};
    use super::*;
    use crate::audit::{self, Code};
    use crate::circuit::Circuit;
    use crate::ir::ModelSpan;
    use crate::passes::{fold_epilogues, fold_ropes};
    use serde_json::{Value, json};

    /// The circuit with other blocks: `change` gets them.
    fn changed(change: impl Fn(&mut Value)) -> Circuit {
        let mut circuit = serde_json::to_value(Circuit::named("deepseek2").unwrap()).unwrap();
        change(&mut circuit["blocks"]);
        Circuit::parse(&circuit.to_string()).unwrap()
    }

    /// The operation that has this in its place, such as the name of its result.
    fn place(block: &Value, key: &str, value: &str) -> usize {
        let ops = block["ops"].as_array().unwrap();
        ops.iter().position(|op| op[key] == value || op[key][0] == value).unwrap()
    }

    /// The nodes of layer 0 that normalize the residual stream: norm nodes, and norm prologues.
    fn norms(ir: &Ir) -> (usize, usize) {
        let first = |n: &&crate::ir::Node| n.layer == Some(0);
        let residual =
            |n: &&crate::ir::Node| ir.value(ir.root(n.inputs[0])).storage == crate::ir::ValueStorage::Hidden;
        let nodes = || ir.nodes.iter().filter(first).filter(residual);
        (
            nodes().filter(|n| n.op == Op::RmsNorm).count(),
            nodes().filter(|n| n.prologue.norm.is_some()).count(),
        )
    }

    /// Folded by all passes, and found whole by the audit.
    fn folded(circuit: &Circuit) -> Ir {
        let mut config = config();
        // As wide as the residual stream, so that the output projection may read either.
        config.attention.v = config.hidden_size / config.attention.heads;
        let ir = fold_norms(lowered_of(circuit, &config), BatchBucket::Decode);
        let ir = fold_epilogues(fold_ropes(ir));
        let found = audit::ir(&ir, circuit, &ModelSpan::backbone(&config), &config);
        // Norms that nothing reads any more are left by the changed circuit.
        let wrong: Vec<_> = found.iter().filter(|f| f.code != Code::A15).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        ir
    }

    #[test]
    fn norms_fold_only_if_their_input_is_not_overwritten() {
        // q_a with kv_a, and gate with up.
        assert_eq!(norms(&folded(Circuit::named("deepseek2").unwrap())), (0, 2));
        // Gate and up read what attention reads, after attention has been added to it.
        let late = changed(|blocks| {
            let mlp = place(&blocks["dense"], "op", "mlp");
            blocks["dense"]["ops"][mlp]["in"] = json!(["x"]);
            blocks["dense"]["in"] = json!(["h_mid", "x"]);
            blocks["mla"]["out"] = json!(["h_mid", "x"]);
        });
        assert_eq!(norms(&folded(&late)), (2, 0));
    }

    #[test]
    fn a_product_does_not_add_to_what_it_reads() {
        // The output projection reads a norm of the residual stream that its result is added to.
        let circuit = changed(|blocks| {
            let out = place(&blocks["mla"], "out", "attn_delta");
            let ops = blocks["mla"]["ops"].as_array_mut().unwrap();
            ops[out]["in"] = json!(["z"]);
            ops.insert(out, json!({"op": "rms_norm", "in": ["h"], "weights": ["attn_norm"], "out": ["z"]}));
        });
        let adds = |ir: &Ir| ir.nodes.iter().filter(|n| matches!(n.op, Op::Add { .. })).count();
        assert_eq!(adds(&folded(Circuit::named("deepseek2").unwrap())), 0);
        assert_eq!(adds(&folded(&circuit)), 2, "one a layer stays a sum");
    }
}
