//! Edges: who makes what, who reads it, for which rows, and in which slot.

use super::trace::{Trace, rows};
use super::{Code, Findings};
use crate::ir::{Carries, Epilogue, Node, Op, Storage, ValueId};

pub(super) fn check(trace: &Trace<'_>, found: &mut Findings<'_>) {
    for n in 0..trace.ir.nodes.len() {
        slots(trace, n, found);
        kinds(trace, n, found);
        folded(trace, n, found);
        layers(trace, n, found);
    }
    order(trace, found);
    unread(trace, found);
}

/// A16: inputs, outputs and weights, each in a slot of the operation.
fn slots(trace: &Trace<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let (inputs, outputs) = (node.input_count(), node.output_count());
    if node.inputs.len() != inputs {
        found.at(Code::A16, trace.ir, n, None, format!("it has {} inputs, not {inputs}", node.inputs.len()));
    }
    if node.outputs.len() != outputs || (node.op == Op::Split && node.outputs.is_empty()) {
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

/// What a node's weights should be, where they are something else. (The slots of attention are a matter of A49.)
fn wrong_weights(trace: &Trace<'_>, node: &Node) -> Option<&'static str> {
    let count = node.weights.len();
    let (fits, expected) = match (node.op, node.epilogue) {
        (Op::Embed { .. } | Op::RmsNorm | Op::ExpertDown, _) => (count == 1, "one"),
        (Op::Linear, Epilogue::SiluMul) => (count == 2, "two, gate and up"),
        (Op::Linear, Epilogue::Relu2 | Epilogue::AddTo(_)) => (count == 1, "one"),
        (Op::Linear, Epilogue::None) => (count > 0, "at least one"),
        (Op::Route, _) => (count <= 1, "none or a bias"),
        (Op::ExpertGateUp, _) => (count == 1 || count == 2, "gate and up, or both in one"),
        (Op::ExpertMlp, _) => (count == 2 || count == 3, "gate, up and down"),
        (Op::MlaAttention | Op::ExpandedStore | Op::AbsorbK | Op::AbsorbV, _) => (count > 0, "W_UK or W_UV"),
        (Op::AttendExpanded, _) => {
            let latent = node
                .kv_layer
                .is_some_and(|id| trace.ir.kv_layers[id.0].kind == crate::ir::KvLayerKind::Latent);
            ((count > 0) == latent, "W_UK and W_UV over latents, none over expanded rows")
        }
        _ => (count == 0, "none"),
    };
    (!fits).then_some(expected)
}

/// A18: the dtype of every edge.
fn kinds(trace: &Trace<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    for (i, id) in node.inputs.iter().enumerate() {
        let Some(port) = node.input_port(i) else { continue };
        let carried = carried(trace, *id);
        if carried != port.carries {
            let problem =
                format!("{} is {carried:?}, but the slot takes {:?}", trace.name(*id), port.carries);
            found.at(Code::A18, trace.ir, n, Some(port.name.into()), problem);
        }
    }
}

/// What a value holds, by the slot that makes it.
fn carried(trace: &Trace<'_>, id: ValueId) -> Carries {
    if trace.ir.value(id).storage == Storage::Tokens {
        return Carries::Tokens;
    }
    let Some(&maker) = trace.makers[id.0].first() else { return Carries::Numbers };
    let node = &trace.ir.nodes[maker];
    let slot = node.outputs.iter().position(|out| *out == id).and_then(|i| node.output_port(i));
    slot.map_or(Carries::Numbers, |port| port.carries)
}

/// A19: what is folded in must be something that the operation does.
fn folded(trace: &Trace<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    let normalises = matches!(node.op, Op::Linear | Op::ExpertGateUp | Op::LatentStore);
    if node.prologue.norm.is_some() && !normalises {
        found.at(Code::A19, trace.ir, n, None, "it has a norm prologue, which it does not apply".into());
    }
    let rotates = matches!(node.op, Op::LatentStore | Op::ExpandedStore | Op::AbsorbK);
    if node.prologue.rope && !rotates {
        found.at(Code::A19, trace.ir, n, None, "it has a rope prologue, which it does not apply".into());
    }
    let ends = match node.epilogue {
        Epilogue::None => true,
        Epilogue::SiluMul | Epilogue::Relu2 => node.op == Op::Linear,
        Epilogue::AddTo(_) => matches!(node.op, Op::Linear | Op::ExpertDown),
    };
    if !ends {
        found.at(
            Code::A19,
            trace.ir,
            n,
            None,
            format!("it has the epilogue {:?}, which it does not apply", node.epilogue),
        );
    }
}

/// A17: what a layer reads is its own, or the residual stream.
fn layers(trace: &Trace<'_>, n: usize, found: &mut Findings<'_>) {
    let node = &trace.ir.nodes[n];
    for id in &node.inputs {
        let root = &trace.ir.values[trace.places[id.0].root];
        if matches!(root.storage, Storage::Hidden | Storage::Tokens) {
            continue;
        }
        let Some(maker) = trace.maker(*id, node.path) else { continue };
        let made_in = trace.ir.nodes[maker].layer;
        if made_in != node.layer {
            let name =
                |layer: Option<usize>| layer.map_or_else(|| "no layer".into(), |l| format!("layer {l}"));
            let problem = format!("it is made in {} and read in {}", name(made_in), name(node.layer));
            found.at(Code::A17, trace.ir, n, Some(trace.name(*id)), problem);
        }
    }
}

/// A value that is in memory now, and the rows for which it still holds what its maker made.
struct Alive {
    value: usize,
    rows: u8,
}

/// A11 to A14: walks the nodes in order and keeps, for every value, the rows for which it was made and not yet overwritten.
fn order(trace: &Trace<'_>, found: &mut Findings<'_>) {
    let ir = trace.ir;
    let mut made = vec![0u8; ir.values.len()];
    let mut alive: Vec<Vec<Alive>> = (0..ir.values.len()).map(|_| Vec::new()).collect();
    // what enters the span
    for (v, value) in ir.values.iter().enumerate() {
        if trace.makers[v].is_empty() && matches!(value.storage, Storage::Tokens | Storage::Hidden) {
            made[v] = 3;
            alive[v].push(Alive { value: v, rows: 3 });
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
            write(trace, &mut alive, *id, needed, node.op == Op::Split);
        }
    }
}

/// Records that `id` is in memory now for `rows`, and that values it overlaps are overwritten for them, unless `id` is only a view.
fn write(trace: &Trace<'_>, alive: &mut [Vec<Alive>], id: ValueId, rows: u8, view: bool) {
    let place = trace.places[id.0];
    let here = &mut alive[place.root];
    if !view {
        for other in here.iter_mut().filter(|a| a.value != id.0 && trace.places[a.value].overlaps(&place)) {
            other.rows &= !rows;
        }
        // what was overwritten for all rows need not be looked at again
        here.retain(|a| a.rows != 0);
    }
    match here.iter_mut().find(|a| a.value == id.0) {
        Some(a) => a.rows |= rows,
        None => here.push(Alive { value: id.0, rows }),
    }
}

/// A15: what nobody reads.
fn unread(trace: &Trace<'_>, found: &mut Findings<'_>) {
    let ir = trace.ir;
    for (n, node) in ir.nodes.iter().enumerate() {
        for id in &node.outputs {
            if trace.readers[id.0] == 0 && !ir.outputs.iter().any(|(_, out)| out == id) {
                found.at(Code::A15, ir, n, Some(trace.name(*id)), "nothing reads it".into());
            }
        }
    }
}
