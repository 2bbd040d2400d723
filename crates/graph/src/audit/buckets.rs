//! Rules across batch buckets: rows that one plan writes to the KV cache are read by another.

use super::findings::{BindContext, Findings};
use super::rules::Code;
use crate::ir::Op;
use crate::plan::Plan;
use crate::stage::Stage;
use latent_types::{ActivationType, OpKind, WeightLayout};
use std::collections::HashMap;

pub(super) fn check(stages: &[Stage], bound: BindContext<'_>, found: &mut Findings<'_>) {
    stages.iter().for_each(|stage| cache(&stage.plans, found));
    weights(stages.iter().flat_map(|stage| &stage.plans), bound, found);
}

/// A47: all plans have the same KV layers in the same order, written by the same operation.
fn cache(layers: &[Plan], found: &mut Findings<'_>) {
    let Some((first, others)) = layers.split_first() else { return };
    for other in others {
        // One KV store serves all plans of a stage, by index.
        if first.ir.kv_layers.len() != other.ir.kv_layers.len() {
            let problem = format!(
                "plans of {:?} and {:?} rows have {} and {} KV layers",
                first.bucket,
                other.bucket,
                first.ir.kv_layers.len(),
                other.ir.kv_layers.len()
            );
            found.add(Code::A47, None, None, problem);
            continue;
        }
        let pairs = first.ir.kv_layers.iter().zip(&other.ir.kv_layers);
        for (number, (one, two)) in pairs.enumerate().filter(|(_, (one, two))| one != two) {
            let problem = format!(
                "{:?} rows use a row of {} elements ({:?}, layer {}), {:?} rows one of {} ({:?}, layer {})",
                first.bucket, one.width, one.kind, one.layer, other.bucket, two.width, two.kind, two.layer
            );
            found.add(Code::A47, Some(one.layer), Some(format!("KV layer {number}")), problem);
        }
        let (one, two) = (stores(first), stores(other));
        if let Some((a, b)) = one.iter().zip(&two).find(|(a, b)| a != b) {
            let problem = format!(
                "{:?} rows write the cache by {}, {:?} rows by {}",
                first.bucket,
                a.1.word(),
                other.bucket,
                b.1.word()
            );
            found.add(Code::A47, a.0, Some("store".into()), problem);
        }
    }
}

/// Layer and operation of every store, in order.
fn stores(plan: &Plan) -> Vec<(Option<usize>, Op)> {
    let stores = plan.ir.nodes.iter().filter(|n| n.op.spec().kv.stores);
    stores.map(|node| (node.layer, node.op)).collect()
}

/// A74 and A75: layout and activation type of each weight's matmuls.
fn weights<'a>(plans: impl Iterator<Item = &'a Plan>, bound: BindContext<'_>, found: &mut Findings<'_>) {
    let mut layouts: HashMap<&str, WeightLayout> = HashMap::new();
    let mut inputs: HashMap<(&str, &'static str), ActivationType> = HashMap::new();
    for plan in plans {
        for node in &plan.ir.nodes {
            for ((slot, id), kernel) in node.weights.iter().zip(&node.kernels) {
                let product =
                    |k: &&latent_types::KernelContract| matches!(k.op, OpKind::Linear | OpKind::LinearT);
                let Some(contract) = bound.target.contracts().get(kernel.index).filter(product) else {
                    continue;
                };
                let Some(weight) = plan.ir.weights.get(id.0) else { continue };
                let layout = *layouts.entry(weight.key()).or_insert(contract.layout);
                // A weight is packed once, so all its kernels must read one layout.
                if layout != contract.layout {
                    let problem = format!(
                        "it is read as {layout:?} and, by {}, as {:?}",
                        contract.name, contract.layout
                    );
                    found.add(Code::A74, weight.layer, Some(slot.clone()), problem);
                }
                // A prefill-only kernel may read another input type. Its error is stated and tested
                // separately.
                if contract.min_rows > 1 {
                    continue;
                }
                let activation = *inputs.entry((weight.key(), node.op.word())).or_insert(contract.activation);
                // Otherwise a token would get other bits in a batch than alone.
                if activation != contract.activation {
                    let problem = format!(
                        "its input is read as {} and, by {}, as {}",
                        activation.name(),
                        contract.name,
                        contract.activation.name()
                    );
                    found.add(Code::A75, weight.layer, Some(slot.clone()), problem);
                }
            }
        }
    }
}
