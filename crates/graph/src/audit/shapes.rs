//! Shapes: widths, heads and rows on both sides of every edge, against weights and config.

use super::trace::Trace;
use super::{Code, Findings};
use crate::config::ModelConfig;
use crate::ir::{Epilogue, KvLayerKind, Node, Op, RowCount, Storage, Value, ValueId};

pub(super) fn check(trace: &Trace<'_>, config: &ModelConfig, found: &mut Findings<'_>) {
    for (n, node) in trace.ir.nodes.iter().enumerate() {
        let complete = node.inputs.len() == node.input_count() && node.outputs.len() == node.output_count();
        norm(trace, n, node, found);
        if !complete {
            continue; // A16 has said so
        }
        rows(trace, n, node, config, found);
        match node.op {
            Op::Linear => linear(trace, n, node, found),
            Op::Embed { .. } => embed(trace, n, node, config, found),
            Op::Split => split(trace, n, node, found),
            Op::RmsNorm
            | Op::Rope
            | Op::Relu2
            | Op::Scale { .. }
            | Op::GatherRows
            | Op::Add { .. }
            | Op::SiluMul => {
                kept(trace, n, node, found);
            }
            Op::Route | Op::ExpertMlp | Op::ExpertGateUp | Op::ExpertDown => {
                experts(trace, n, node, config, found);
            }
            _ => {
                attention(trace, n, node, config, found);
                expanding(trace, n, node, config, found);
            }
        }
    }
    views(trace, found);
    kv_layers(trace, config, found);
    results(trace, config, found);
}

fn value<'a>(trace: &Trace<'a>, id: ValueId) -> &'a Value {
    trace.ir.value(id)
}

/// A20 and A21 of a product: every weight takes the row that is read, and gives the row that is made.
fn linear(trace: &Trace<'_>, n: usize, node: &Node, found: &mut Findings<'_>) {
    let width = value(trace, node.inputs[0]).row_width();
    let gated = node.epilogue == Epilogue::SiluMul;
    for (i, (slot, id)) in node.weights.iter().enumerate() {
        let weight = trace.ir.weight(*id);
        if weight.inputs() != width || weight.shape.len() != 2 {
            let problem =
                format!("the weight of shape {:?} does not take a row of {width} elements", weight.shape);
            found.at(Code::A20, trace.ir, n, Some(slot.clone()), problem);
        }
        let out = if gated { node.outputs.first() } else { node.outputs.get(i) };
        if let Some(out) = out
            && value(trace, *out).row_width() != weight.outputs()
        {
            let made = value(trace, *out).row_width();
            let problem = format!(
                "the weight gives {} elements, but {} has {made}",
                weight.outputs(),
                trace.name(*out)
            );
            found.at(Code::A21, trace.ir, n, Some(slot.clone()), problem);
        }
    }
    if matches!(node.epilogue, Epilogue::AddTo(_)) {
        same(trace, n, node.inputs[1], node.outputs[0], found);
    }
}

fn embed(trace: &Trace<'_>, n: usize, node: &Node, config: &ModelConfig, found: &mut Findings<'_>) {
    let Some((slot, id)) = node.weights.first() else { return };
    let weight = trace.ir.weight(*id);
    let width = value(trace, node.outputs[0]).row_width();
    if weight.inputs() != width || weight.outputs() != config.vocab_size {
        let problem = format!(
            "the embedding has shape {:?}, expected {} tokens of {width} elements",
            weight.shape, config.vocab_size
        );
        found.at(Code::A21, trace.ir, n, Some(slot.clone()), problem);
    }
}

/// A22: both sides have the same heads and widths.
fn same(trace: &Trace<'_>, n: usize, a: ValueId, b: ValueId, found: &mut Findings<'_>) {
    let (one, other) = (value(trace, a), value(trace, b));
    if one.row_width() != other.row_width() {
        let problem = format!(
            "{} has {} × {} elements, {} has {} × {}",
            trace.name(a),
            one.heads,
            one.width,
            trace.name(b),
            other.heads,
            other.width
        );
        found.at(Code::A22, trace.ir, n, None, problem);
    }
}

fn kept(trace: &Trace<'_>, n: usize, node: &Node, found: &mut Findings<'_>) {
    for input in &node.inputs {
        same(trace, n, *input, node.outputs[0], found);
    }
}

/// A22 of a split: parts side by side, together the whole.
fn split(trace: &Trace<'_>, n: usize, node: &Node, found: &mut Findings<'_>) {
    let whole = value(trace, node.inputs[0]);
    let mut at = 0;
    for out in &node.outputs {
        let part = value(trace, *out);
        if part.heads != whole.heads || part.storage != (Storage::View { of: node.inputs[0], offset: at }) {
            let problem = format!(
                "{} does not begin at element {at} of each head of {}",
                trace.name(*out),
                trace.name(node.inputs[0])
            );
            found.at(Code::A22, trace.ir, n, Some(trace.name(*out)), problem);
        }
        at += part.width;
    }
    if at != whole.width {
        found.at(
            Code::A22,
            trace.ir,
            n,
            None,
            format!("the parts have {at} elements, a head has {}", whole.width),
        );
    }
}

/// A23, for norm nodes and norm prologues.
fn norm(trace: &Trace<'_>, n: usize, node: &Node, found: &mut Findings<'_>) {
    let of_node = node.weights.first().map(|(_, id)| *id).filter(|_| node.op == Op::RmsNorm);
    for id in of_node.into_iter().chain(node.prologue.norm) {
        let weight = trace.ir.weight(id);
        let width = node.inputs.first().map_or(0, |input| value(trace, *input).row_width());
        if weight.shape != [width] {
            let problem =
                format!("the norm's weight has shape {:?}, the row has {width} elements", weight.shape);
            found.at(Code::A23, trace.ir, n, Some(weight.slot.clone()), problem);
        }
    }
}

/// A24: views inside their parents.
fn views(trace: &Trace<'_>, found: &mut Findings<'_>) {
    for v in &trace.ir.values {
        let Storage::View { of, offset } = v.storage else { continue };
        let parent = value(trace, of);
        let inside = if v.heads == parent.heads {
            offset.checked_add(v.width).is_some_and(|end| end <= parent.width)
        } else {
            offset == 0 && v.row_width() <= parent.row_width()
        };
        if !inside || v.rows != parent.rows {
            let problem = format!(
                "{} × {} elements from {offset} on are not inside value {} of {} × {}",
                v.heads, v.width, parent.name, parent.heads, parent.width
            );
            found.add(Code::A24, v.layer, Some(format!("value {}", v.name)), problem);
        }
    }
}

/// A25: a row of the batch on both sides, or one for each expert of a row.
fn rows(trace: &Trace<'_>, n: usize, node: &Node, config: &ModelConfig, found: &mut Findings<'_>) {
    let used = config.moe.map_or(0, |m| m.num_experts_per_tok);
    for (is_input, i, id) in each(node) {
        let of_experts = match (node.op, is_input) {
            (Op::ExpertGateUp, false) => true,
            (Op::ExpertDown, true) => i == 0,
            _ => false,
        };
        let expected = if of_experts { RowCount::Times(used) } else { RowCount::Rows };
        if value(trace, id).rows != expected {
            let port = if is_input { node.input_port(i) } else { node.output_port(i) };
            let problem =
                format!("{} has {:?} rows, expected {expected:?}", trace.name(id), value(trace, id).rows);
            found.at(Code::A25, trace.ir, n, port.map(|p| p.name.to_owned()), problem);
        }
    }
}

/// Inputs, then outputs, with their positions.
fn each(node: &Node) -> impl Iterator<Item = (bool, usize, ValueId)> + '_ {
    let inputs = node.inputs.iter().enumerate().map(|(i, id)| (true, i, *id));
    inputs.chain(node.outputs.iter().enumerate().map(|(i, id)| (false, i, *id)))
}

/// A26: heads and widths of attention.
fn attention(trace: &Trace<'_>, n: usize, node: &Node, config: &ModelConfig, found: &mut Findings<'_>) {
    let a = &config.attention;
    let (nope, rope, v) = ((a.heads, a.nope), (a.heads, a.rope), (a.heads, a.v));
    let (query, mix) = ((a.heads, a.latent_width()), (a.heads, a.kv_lora_rank));
    let (latent, key) = ((1, a.kv_lora_rank), (1, a.rope));
    let expected: &[(usize, usize)] = match node.op {
        Op::MlaAttention => &[nope, rope, latent, key, v],
        Op::LatentStore | Op::ExpandedStore => &[latent, key],
        Op::AbsorbK => &[nope, rope, query],
        Op::AttendLatent | Op::AttendSeparate => &[query, mix],
        Op::AbsorbV => &[mix, v],
        Op::AttendExpanded => &[nope, rope, v],
        _ => &[],
    };
    for ((is_input, i, id), (heads, width)) in each(node).zip(expected) {
        let it = value(trace, id);
        if (it.heads, it.width) != (*heads, *width) {
            let port = if is_input { node.input_port(i) } else { node.output_port(i) };
            let problem = format!(
                "{} has {} × {} elements, expected {heads} heads × {width}",
                trace.name(id),
                it.heads,
                it.width
            );
            found.at(Code::A26, trace.ir, n, port.map(|p| p.name.to_owned()), problem);
        }
    }
}

/// A26: the matrices that expand or absorb latents.
fn expanding(trace: &Trace<'_>, n: usize, node: &Node, config: &ModelConfig, found: &mut Findings<'_>) {
    let a = &config.attention;
    for (slot, id) in &node.weights {
        let expected = match slot.as_str() {
            "k_b" => vec![a.heads, a.kv_lora_rank, a.nope],
            "v_b" => vec![a.heads, a.v, a.kv_lora_rank],
            "kv_b" => vec![a.heads * (a.nope + a.v), a.kv_lora_rank],
            _ => continue, // A49 says so
        };
        let shape = &trace.ir.weight(*id).shape;
        if *shape != expected {
            let problem = format!("the weight has shape {shape:?}, expected {expected:?}");
            found.at(Code::A26, trace.ir, n, Some(slot.clone()), problem);
        }
    }
}

/// A27: rows of the KV layers.
fn kv_layers(trace: &Trace<'_>, config: &ModelConfig, found: &mut Findings<'_>) {
    for kv_layer in &trace.ir.kv_layers {
        let expected = match kv_layer.kind {
            KvLayerKind::Latent => config.attention.latent_width(),
            KvLayerKind::Expanded => config.attention.expanded_width(),
        };
        if kv_layer.width != expected {
            let problem = format!("a cached row has {} elements, expected {expected}", kv_layer.width);
            found.add(
                Code::A27,
                Some(kv_layer.layer),
                Some(format!("{:?} KV layer", kv_layer.kind)),
                problem,
            );
        }
    }
}

/// A28, and A20 and A21 of the experts' matrices.
fn experts(trace: &Trace<'_>, n: usize, node: &Node, config: &ModelConfig, found: &mut Findings<'_>) {
    let Some(moe) = config.moe else {
        found.at(Code::A28, trace.ir, n, None, "the config has no experts".into());
        return;
    };
    let mut expect = |id: ValueId, width: usize, slot: &str| {
        let has = value(trace, id).row_width();
        if has != width {
            let problem = format!("{} has {has} elements, expected {width}", trace.name(id));
            found.at(Code::A28, trace.ir, n, Some(slot.to_owned()), problem);
        }
    };
    match node.op {
        Op::Route => {
            expect(node.inputs[0], moe.experts, "logits");
            expect(node.outputs[0], moe.num_experts_per_tok, "topk_ids");
            expect(node.outputs[1], moe.num_experts_per_tok, "topk_weights");
            for (slot, id) in &node.weights {
                let shape = &trace.ir.weight(*id).shape;
                if shape[..] != [moe.experts] {
                    let problem = format!(
                        "the bias has shape {shape:?}, expected one element for each of {} experts",
                        moe.experts
                    );
                    found.at(Code::A28, trace.ir, n, Some(slot.clone()), problem);
                }
            }
        }
        Op::ExpertMlp | Op::ExpertDown => {
            expect(node.inputs[1], moe.num_experts_per_tok, "topk_ids");
            expect(node.inputs[2], moe.num_experts_per_tok, "topk_weights");
        }
        _ => expect(node.inputs[1], moe.num_experts_per_tok, "topk_ids"),
    }
    if node.op == Op::ExpertDown
        && let Some(first) = trace.maker(node.inputs[0], node.path)
        && trace.ir.nodes[first].inputs.get(1) != node.inputs.get(1)
    {
        let problem = "its rows were sorted by another routing than it undoes".into();
        found.at(Code::A28, trace.ir, n, Some("topk_ids".into()), problem);
    }
    if node.op != Op::Route {
        matrices(trace, n, node, moe.experts, found);
    }
}

fn matrices(trace: &Trace<'_>, n: usize, node: &Node, experts: usize, found: &mut Findings<'_>) {
    let input = value(trace, node.inputs[0]).row_width();
    let output = value(trace, node.outputs[0]).row_width();
    let fused = node.weights.len() == 1 && node.op == Op::ExpertGateUp;
    for (slot, id) in &node.weights {
        let weight = trace.ir.weight(*id);
        let mut wrong = |code, problem| found.at(code, trace.ir, n, Some(slot.clone()), problem);
        if weight.shape.len() != 3 || weight.shape[0] != experts {
            wrong(Code::A28, format!("the weight has shape {:?}, expected {experts} matrices", weight.shape));
        }
        if node.op == Op::ExpertMlp {
            continue; // the width between gate and down is nobody's value yet
        }
        if weight.inputs() != input {
            wrong(Code::A20, format!("the weight takes {} elements, the row has {input}", weight.inputs()));
        }
        if weight.outputs() != output * (1 + usize::from(fused)) {
            wrong(
                Code::A21,
                format!("the weight gives {} elements, the result has {output}", weight.outputs()),
            );
        }
    }
}

/// A29: the named results.
fn results(trace: &Trace<'_>, config: &ModelConfig, found: &mut Findings<'_>) {
    let [(name, id)] = &trace.ir.outputs[..] else {
        let problem = format!("it has {} results, expected one: hidden or logits", trace.ir.outputs.len());
        found.add(Code::A29, None, None, problem);
        return;
    };
    let root = trace.ir.values[trace.places[id.0].root].storage;
    let (width, storage) = match name.as_str() {
        "hidden" => (config.hidden_size, Storage::Hidden),
        "logits" => (config.vocab_size, Storage::Logits),
        _ => {
            found.add(Code::A29, None, Some(name.clone()), "a result is called hidden or logits".into());
            return;
        }
    };
    if value(trace, *id).row_width() != width || root != storage {
        let has = value(trace, *id).row_width();
        let problem = format!("it has {has} elements in {root:?}, expected {width} in {storage:?}");
        found.add(Code::A29, None, Some(name.clone()), problem);
    }
}
