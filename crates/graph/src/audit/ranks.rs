//! Rules for communication between ranks: sums of partial values, and rows of the residual stream
//! at the ends of their layers.

use super::findings::Findings;
use super::rules::Code;
use super::trace::ResolvedIr;
use crate::config::{ModelConfig, RankPart};
use crate::ir::{AttentionPath, Epilogue, Ir, ModelSpan, Node, Op, ValueStorage};

pub(super) fn check(
    trace: &ResolvedIr<'_>,
    span: &ModelSpan,
    config: &ModelConfig,
    found: &mut Findings<'_>,
) {
    let part = config.part.as_deref();
    sums(trace, part, found);
    // MTP layers are not shared by ranks.
    if !span.mtp {
        ends(trace, part, found);
    }
}

/// Whether the node gives only this rank's terms of a sum: it multiplies with a part of the inputs,
/// or adds the rank's own experts.
fn gives_terms(ir: &Ir, node: &Node, part: Option<&RankPart>) -> bool {
    let cut = node.weights.iter().any(|(_, id)| ir.weight(*id).gives_terms());
    match node.op {
        Op::Linear => cut,
        Op::ExpertMlp | Op::ExpertDown => cut || part.is_some_and(|part| !part.experts.is_all()),
        _ => false,
    }
}

/// A90, A91: every partial sum is reduced once, before anything but another partial sum reads it.
/// Other values are not reduced.
fn sums(trace: &ResolvedIr<'_>, part: Option<&RankPart>, found: &mut Findings<'_>) {
    let ir = trace.ir;
    let mut partial = vec![false; ir.values.len()];
    for (n, node) in ir.nodes.iter().enumerate() {
        let all = !node.inputs.is_empty() && node.inputs.iter().all(|id| partial[id.0]);
        match node.op {
            Op::AllReduce if all => continue,
            Op::AllReduce => {
                let names: Vec<String> = node.inputs.iter().map(|id| trace.name(*id)).collect();
                let problem =
                    format!("{} is not a partial sum, or has already been reduced", names.join(", "));
                found.at(Code::A91, ir, n, None, problem);
                continue;
            }
            Op::Add { .. } if all => {
                node.outputs.iter().for_each(|id| partial[id.0] = true);
                continue;
            }
            _ => {}
        }
        let gives = gives_terms(ir, node, part);
        // The residual that the node adds its terms to. It must be a partial sum itself.
        let sum = node.inputs.last().filter(|_| gives && matches!(node.epilogue, Epilogue::AddTo(_)));
        for id in node.inputs.iter().filter(|id| partial[id.0] && Some(*id) != sum) {
            let problem = format!("{} is read before it is summed over the ranks", trace.name(*id));
            found.at(Code::A90, ir, n, None, problem);
        }
        // The residual is equal on all ranks, so adding terms to it before the reduction would
        // count it once per rank.
        if let Some(id) = sum.filter(|id| !partial[id.0]) {
            let problem = format!("its terms are added to {}, which every rank would count", trace.name(*id));
            found.at(Code::A90, ir, n, None, problem);
        }
        if gives {
            node.outputs.iter().for_each(|id| partial[id.0] = true);
        }
    }
    for (name, _) in ir.outputs.iter().filter(|(_, id)| partial[id.0]) {
        found.add(Code::A90, None, Some(name.clone()), "it is never summed over the ranks".into());
    }
}

/// Position of a node relative to the rank's layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodePosition {
    Before,
    Within,
    After,
}

/// A92: rows are received before the first layer and sent after the last, if other ranks have
/// layers before and after.
fn ends(trace: &ResolvedIr<'_>, part: Option<&RankPart>, found: &mut Findings<'_>) {
    let ir = trace.ir;
    let in_layer = |node: &Node| node.layer.is_some();
    // Collectives at the ends belong to no layer.
    let bounds = ir.nodes.iter().position(in_layer).zip(ir.nodes.iter().rposition(in_layer));
    let at = |n: usize| match bounds {
        Some((first, _)) if n < first => NodePosition::Before,
        Some((_, last)) if n < last => NodePosition::Within,
        _ => NodePosition::After,
    };
    let crosses = |node: &Node| matches!(node.op, Op::SendRows | Op::ReceiveRows);
    let here: Vec<usize> = (0..ir.nodes.len()).filter(|n| crosses(&ir.nodes[*n])).collect();
    let mut expected = Vec::new();
    if let Some(part) = part.filter(|_| bounds.is_some()) {
        let all = [
            (part.receives_from.is_some(), Op::ReceiveRows, NodePosition::Before),
            (part.sends_to.is_some(), Op::SendRows, NodePosition::After),
            (part.returned_by.is_some(), Op::ReceiveRows, NodePosition::After),
        ];
        expected.extend(all.into_iter().filter(|(is, ..)| *is).map(|(_, op, at)| (op, at)));
    }
    let are: Vec<(Op, NodePosition)> = here.iter().map(|n| (ir.nodes[*n].op, at(*n))).collect();
    if are != expected {
        let text = |list: &[(Op, NodePosition)]| {
            let one =
                |(op, at): &(Op, NodePosition)| format!("{} {at:?} its layers", op.word()).to_lowercase();
            if list.is_empty() {
                "nothing".into()
            } else {
                list.iter().map(one).collect::<Vec<_>>().join(", ")
            }
        };
        let problem = format!("the rank has {}, expected {}", text(&are), text(&expected));
        found.add(Code::A92, None, None, problem);
        return;
    }
    let result = ir.outputs.iter().find(|(name, _)| name == "hidden").map(|(_, id)| *id);
    let of_last = |n: usize| bounds.is_some_and(|(_, last)| ir.nodes[n].layer == ir.nodes[last].layer);
    for ((op, place), n) in expected.into_iter().zip(here) {
        let node = &ir.nodes[n];
        let [input] = node.inputs[..] else { continue }; // A16 was reported.
        let maker = trace.maker(input, AttentionPath::All);
        let stored = ir.values[trace.places[input.0].root].storage;
        let right = match (op, place) {
            (Op::ReceiveRows, NodePosition::Before) => maker.is_none(),
            (Op::ReceiveRows, _) => node.outputs.first().copied() == result && maker.is_some_and(of_last),
            _ => maker.is_some_and(of_last),
        };
        if !right || stored != ValueStorage::Hidden {
            let problem =
                format!("{} is not the residual stream at this end of its layers", trace.name(input));
            found.at(Code::A92, ir, n, None, problem);
        }
    }
}
