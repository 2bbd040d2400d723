//! Rules for edges: producer, readers, rows and slot of each value.

use super::findings::Findings;
use super::rules::Code;
use super::trace::{ResolvedIr, rows};
use crate::ir::{Epilogue, Node, Op, ValueId, ValueStorage};
use crate::ops::{NodeWeights, NormFold, PARTIALS, SplitFold, adapted_slot};

pub(super) fn check(trace: &ResolvedIr<'_>, found: &mut Findings<'_>) {
    for n in 0..trace.ir.nodes.len() {
        slots(trace, n, found);
        dtypes(trace, n, found);
        folded(trace, n, found);
        kv_splits(trace, n, found);
        layers(trace, n, found);
    }
    order(trace, found);
    unread(trace, found);
}

/// A16: inputs, outputs and weights, each in a slot of its operation.
fn slots(trace: &ResolvedIr<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let (inputs, outputs) = (node.input_count(), node.output_count());
    if node.inputs.len() != inputs {
        found.at(Code::A16, trace.ir, n, None, format!("it has {} inputs, not {inputs}", node.inputs.len()));
    }
    if node.outputs.len() != outputs || (node.op.spec().is_view && node.outputs.is_empty()) {
        found.at(
            Code::A16,
            trace.ir,
            n,
            None,
            format!("it has {} outputs, not {outputs}", node.outputs.len()),
        );
    }
    if let Some(expected) = wrong_weights(trace, node) {
        let slots: Vec<&str> = node.weights.iter().map(|(slot, _)| slot.as_str()).collect();
        found.at(Code::A16, trace.ir, n, None, format!("its weights are {slots:?}, expected {expected}"));
    }
    // The kernel adds in place, so a result stored elsewhere would miss the residual.
    if matches!(node.epilogue, Epilogue::AddTo(_))
        && let (Some(residual), Some(out)) = (node.inputs.last(), node.outputs.first())
        && trace.places[residual.0].root != trace.places[out.0].root
    {
        let problem = format!(
            "it adds to {}, but its result is stored elsewhere, in {}",
            trace.name(*residual),
            trace.name(ValueId(trace.places[out.0].root))
        );
        found.at(Code::A16, trace.ir, n, Some("residual".into()), problem);
    }
}

/// A16: a reader of attention with KV splits must also read their partial results.
fn kv_splits(trace: &ResolvedIr<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    // The KV splits' partial results are always the last input and the last output.
    let partials = node.inputs.last().filter(|_| node.prologue.kv_splits);
    for id in &node.inputs {
        let makers = trace.makers[id.0].iter().map(|maker| &trace.ir.nodes[*maker]);
        for maker in makers.filter(|maker| maker.epilogue == Epilogue::KvSplits) {
            if partials != maker.outputs.last() {
                let problem = format!(
                    "{} may be in KV splits, but it does not read them from where {} stores them",
                    trace.name(*id),
                    maker.op.word()
                );
                found.at(Code::A16, trace.ir, n, Some(PARTIALS.name.into()), problem);
            }
        }
    }
}

/// The expected weights of a node, if its weights are different. (A49 checks the slots of
/// attention.)
fn wrong_weights(trace: &ResolvedIr<'_>, node: &Node) -> Option<&'static str> {
    let kv = node.kv_layer.map(|id| trace.ir.kv_layers[id.0].kind);
    // Adapter matrices of experts are not counted: they belong to the weight that they change.
    let count = node.weights.iter().filter(|(slot, _)| adapted_slot(slot).is_none()).count();
    let weights = NodeWeights { count, epilogue: node.epilogue, kv };
    (node.op.spec().weights_fit)(&weights).err()
}

/// A18: the dtype of every value is that of the port that reads it and of the port that produces
/// it.
fn dtypes(trace: &ResolvedIr<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let inputs = node.inputs.iter().enumerate().map(|(i, id)| (*id, node.input_port(i)));
    let outputs = node.outputs.iter().enumerate().map(|(i, id)| (*id, node.output_port(i)));
    for (id, port) in inputs.chain(outputs) {
        let Some(port) = port else { continue }; // A16 was reported.
        let dtype = trace.ir.value(id).dtype;
        if dtype != port.dtype {
            let problem = format!("{} is {dtype}, but the port is {}", trace.name(id), port.dtype);
            found.at(Code::A18, trace.ir, n, Some(port.name.into()), problem);
        }
    }
}

/// A19: prologues and epilogues are among those that the operation applies.
fn folded(trace: &ResolvedIr<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let folds = node.op.spec().folds;
    if node.prologue.norm.is_some() && folds.norm == NormFold::No {
        found.at(
            Code::A19,
            trace.ir,
            n,
            None,
            "it has a norm prologue, which its operation does not support".into(),
        );
    }
    if node.prologue.rope && !folds.rope {
        found.at(
            Code::A19,
            trace.ir,
            n,
            None,
            "it has a rope prologue, which its operation does not support".into(),
        );
    }
    if node.prologue.kv_splits && folds.kv_splits != SplitFold::Combines {
        let problem = "it has a prologue that combines KV splits, which its operation does not support";
        found.at(Code::A19, trace.ir, n, None, problem.into());
    }
    let ends = match node.epilogue {
        Epilogue::None => true,
        Epilogue::KvSplits => folds.kv_splits == SplitFold::Leaves,
        Epilogue::SiluMul | Epilogue::Relu2 => folds.activation,
        Epilogue::AddTo(_) => folds.sum,
    };
    if !ends {
        found.at(
            Code::A19,
            trace.ir,
            n,
            None,
            format!("it has the epilogue {:?}, which its operation does not support", node.epilogue),
        );
    }
}

/// A17: a layer reads its own values, the residual stream, or the token selection of an earlier
/// layer.
fn layers(trace: &ResolvedIr<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    for id in &node.inputs {
        let root = &trace.ir.values[trace.places[id.0].root];
        if matches!(root.storage, ValueStorage::Hidden | ValueStorage::Tokens) {
            continue;
        }
        let Some(maker) = trace.maker(*id, node.path) else { continue };
        let made_in = trace.ir.nodes[maker].layer;
        let selected = trace.ir.nodes[maker].op == Op::IndexSelect && made_in < node.layer;
        // Parts of a model can be cut between any two layers only if nothing else crosses.
        if made_in != node.layer && !selected {
            let name =
                |layer: Option<usize>| layer.map_or_else(|| "no layer".into(), |l| format!("layer {l}"));
            let problem = format!("it is made in {} and read in {}", name(made_in), name(node.layer));
            found.at(Code::A17, trace.ir, n, Some(trace.name(*id)), problem);
        }
    }
}

/// A value in memory, and the rows for which it has not been overwritten.
struct LiveValue {
    value: usize,
    rows: u8,
}

/// A11 to A14: walks the nodes in order and tracks for which rows each value was produced and not
/// yet overwritten.
fn order(trace: &ResolvedIr<'_>, found: &mut Findings<'_>) {
    let ir = trace.ir;
    let mut made = vec![0u8; ir.values.len()];
    let mut alive: Vec<Vec<LiveValue>> = (0..ir.values.len()).map(|_| Vec::new()).collect();
    // Values that enter the span are valid for both attention paths.
    for (v, value) in ir.values.iter().enumerate() {
        if trace.makers[v].is_empty() && matches!(value.storage, ValueStorage::Tokens | ValueStorage::Hidden)
        {
            made[v] = 3;
            alive[v].push(LiveValue { value: v, rows: 3 });
        }
    }
    for (n, node) in ir.nodes.iter().enumerate() {
        let needed = rows(node.path);
        for (i, id) in node.inputs.iter().enumerate() {
            let place = &trace.places[id.0];
            let still = alive[place.root].iter().find(|a| a.value == id.0).map_or(0, |a| a.rows);
            if still & needed == needed {
                continue;
            }
            let slot = node.input_port(i).map_or("?", |port| port.name);
            let name = trace.name(*id);
            // The most specific rule: never produced, produced for other rows only, or overwritten.
            let (code, problem) = match made[id.0] & needed {
                0 if trace.makers[id.0].is_empty() => {
                    (Code::A11, format!("{name} is read, but nothing makes it"))
                }
                0 => (Code::A11, format!("{name} is read before it is made")),
                some if some != needed => (Code::A13, format!("{name} is made only for a part of the rows")),
                _ => (Code::A14, format!("{name} is read after it was overwritten in place")),
            };
            found.at(code, ir, n, Some(slot.to_owned()), problem);
        }
        for id in &node.outputs {
            if made[id.0] & needed != 0 {
                found.at(
                    Code::A12,
                    ir,
                    n,
                    None,
                    format!("{} was already made for these rows", trace.name(*id)),
                );
            }
            made[id.0] |= needed;
            write(trace, &mut alive, *id, needed, node.op.spec().is_view);
        }
    }
}

/// Records that `id` is in memory for `rows`, and that overlapping values are overwritten for these
/// rows, unless `id` is a view.
fn write(trace: &ResolvedIr<'_>, alive: &mut [Vec<LiveValue>], id: ValueId, rows: u8, view: bool) {
    let place = trace.places[id.0];
    let here = &mut alive[place.root];
    if !view {
        for other in here.iter_mut().filter(|a| a.value != id.0 && trace.places[a.value].overlaps(&place)) {
            other.rows &= !rows;
        }
        // Dropped when overwritten for all rows, so that the list stays short.
        here.retain(|a| a.rows != 0);
    }
    match here.iter_mut().find(|a| a.value == id.0) {
        Some(a) => a.rows |= rows,
        None => here.push(LiveValue { value: id.0, rows }),
    }
}

/// A15: values that no node reads.
fn unread(trace: &ResolvedIr<'_>, found: &mut Findings<'_>) {
    let ir = trace.ir;
    for (n, node) in ir.nodes.iter().enumerate() {
        for id in &node.outputs {
            if trace.readers[id.0] == 0 && !ir.outputs.iter().any(|(_, out)| out == id) {
                found.at(Code::A15, ir, n, Some(trace.name(*id)), "nothing reads it".into());
            }
        }
    }
}
