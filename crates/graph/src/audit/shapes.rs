//! Rules for shapes: widths, heads and rows on both sides of every edge, against weights and
//! config.
//!
//! The shapes that ports and weight slots state are checked here for every operation. An
//! operation's own [`check`](crate::ops::Operation::check) does the rest.

use super::findings::Findings;
use super::rules::Code;
use super::trace::ResolvedIr;
use crate::circuit::{ConfigVars, expression};
use crate::config::ModelConfig;
use crate::ir::{KvLayerKind, Node, Op, RowCount, Value, ValueId, ValueStorage};
use crate::ops::{NodeShapes, Outputs, Port, ShapeRule, ValueShape, WeightShape, adapted_slot};
use std::collections::HashMap;

pub(super) fn check(trace: &ResolvedIr<'_>, config: &ModelConfig, found: &mut Findings<'_>) {
    let vars = ConfigVars::of(config, None);
    let mut stated: HashMap<&str, StatedShapes> = HashMap::new();
    for (n, node) in trace.ir.nodes.iter().enumerate() {
        let mut shapes = shapes(trace, node);
        if let Some(id) = node.prologue.norm {
            let weight = trace.ir.weight(id);
            shapes.norm_width(&weight.slot, &weight.shape);
        }
        // Otherwise A16 was reported.
        if node.inputs.len() == node.input_count() && node.outputs.len() == node.output_count() {
            rows(trace, n, node, config, found);
            routing(trace, n, node, found);
            // The expressions of its ports have no values without experts.
            if node.op.spec().shape_rule == ShapeRule::Experts && config.moe.is_none() {
                found.at(Code::A28, trace.ir, n, None, "the config has no experts".into());
                continue;
            }
            // Cached per operation: the expressions depend on the config only, and a plan has
            // thousands of nodes.
            let stated = stated.entry(node.op.word()).or_insert_with(|| StatedShapes::of(node.op, &vars));
            stated.values(node, &mut shapes);
            stated.weights(node, &mut shapes);
            (node.op.spec().check)(&mut shapes);
        }
        for problem in shapes.problems {
            found.at(code(problem.rule), trace.ir, n, problem.at, problem.text);
        }
    }
    views(trace, found);
    kv_layers(trace, config, found);
    results(trace, config, found);
}

fn code(rule: ShapeRule) -> Code {
    match rule {
        ShapeRule::Takes => Code::A20,
        ShapeRule::Gives => Code::A21,
        ShapeRule::Kept => Code::A22,
        ShapeRule::Norm => Code::A23,
        ShapeRule::Attention => Code::A26,
        ShapeRule::Experts => Code::A28,
    }
}

fn value<'a>(trace: &ResolvedIr<'a>, id: ValueId) -> &'a Value {
    trace.ir.value(id)
}

/// The shapes of a node, as its operation checks them.
fn shapes<'a>(trace: &ResolvedIr<'a>, node: &'a Node) -> NodeShapes<'a> {
    let shape = |id: &ValueId| {
        let it = value(trace, *id);
        let offset = match it.storage {
            // Only a split's check uses offsets, and it needs those within its own input.
            ValueStorage::View { of, offset } if node.inputs.first() == Some(&of) => Some(offset),
            _ => None,
        };
        ValueShape { name: trace.name(*id), rows: it.rows, heads: it.heads, width: it.width, offset }
    };
    let weight = |(slot, id): &'a (String, crate::ir::WeightId)| WeightShape {
        slot,
        shape: &trace.ir.weights[id.0].shape,
    };
    NodeShapes {
        inputs: node.inputs.iter().map(shape).collect(),
        outputs: node.outputs.iter().map(shape).collect(),
        weights: node.weights.iter().map(weight).collect(),
        epilogue: node.epilogue,
        problems: Vec::new(),
    }
}

/// The values of dimensions; `None` if one of them has no value in the config.
fn dimensions<'a>(shape: impl Iterator<Item = &'a str>, vars: &ConfigVars) -> Option<Vec<usize>> {
    shape.map(|dimension| expression::evaluate(dimension, &|name| vars.dimension(name)).ok()).collect()
}

/// The shapes of an operation's ports and slots as numbers, if the config determines them.
struct StatedShapes {
    inputs: Vec<(Port, Option<Vec<usize>>)>,
    outputs: Vec<Option<Vec<usize>>>,
    slots: Vec<(&'static str, Vec<usize>)>,
}

impl StatedShapes {
    fn of(op: Op, vars: &ConfigVars) -> StatedShapes {
        // The first dimension is the rows, which A25 checks.
        let port = |port: &Port| dimensions(port.shape.split(" × ").skip(1), vars);
        let spec = op.spec();
        let outputs = match spec.outputs {
            Outputs::Ports(ports) => ports,
            Outputs::PerWeight(_) | Outputs::PerPart(_) => &[],
        };
        let slots = spec.slots.iter();
        StatedShapes {
            inputs: spec.inputs.iter().map(|of| (*of, port(of))).collect(),
            outputs: outputs.iter().map(port).collect(),
            slots: slots
                .filter_map(|slot| Some((slot.name, dimensions(slot.shape.split(" × "), vars)?)))
                .collect(),
        }
    }

    /// Checks values against ports: heads and width for attention, otherwise elements per row.
    fn values(&self, node: &Node, shapes: &mut NodeShapes<'_>) {
        let rule = node.op.spec().shape_rule;
        self.left_out(node, shapes);
        let stated = |name| self.inputs.iter().find(|(port, _)| port.name == name);
        let inputs =
            shapes.inputs.iter().zip(node.input_ports()).map(|(it, port)| {
                (Some(port), (it, stated(port.name).map_or(&None, |(_, expected)| expected)))
            });
        let outputs =
            shapes.outputs.iter().zip(&self.outputs).enumerate().map(|(i, of)| (node.output_port(i), of));
        let mut problems = Vec::new();
        for (port, (it, expected)) in inputs.chain(outputs) {
            let (heads, width) = match expected.as_deref() {
                Some([width]) => (1, *width),
                Some([heads, width]) => (*heads, *width),
                // The config does not determine all dimensions.
                _ => continue,
            };
            let fits = match rule {
                ShapeRule::Attention => (it.heads, it.width) == (heads, width),
                _ => it.row_width() == heads * width,
            };
            if !fits {
                let text = format!(
                    "{} has {} × {} elements, expected {heads} heads × {width}",
                    it.name, it.heads, it.width
                );
                problems.push((port.map(|port| port.name.to_owned()), text));
            }
        }
        problems.into_iter().for_each(|(port, text)| shapes.wrong(rule, port, text));
    }

    /// Checks that optional inputs exist exactly if the config gives their ports elements.
    fn left_out(&self, node: &Node, shapes: &mut NodeShapes<'_>) {
        for (port, expected) in self.inputs.iter().filter(|(port, _)| port.optional) {
            let elements = expected.as_ref().map_or(0, |dimensions| dimensions.iter().product());
            if (elements > 0) != node.input_at(port.name).is_some() {
                let is = if elements > 0 { "missing" } else { "present" };
                let text = format!("it is {is}, but the config gives it {elements} elements");
                shapes.wrong(node.op.spec().shape_rule, port.name.to_owned(), text);
            }
        }
    }

    /// Checks weights against the slots of their names, or against every slot if the name is
    /// unknown.
    fn weights(&self, node: &Node, shapes: &mut NodeShapes<'_>) {
        for weight in shapes.weights.clone() {
            if adapted_slot(weight.slot).is_some() {
                continue; // The operation's own check compares it with the adapted weight.
            }
            let named = self.slots.iter().find(|(name, _)| *name == weight.slot);
            let alike = || self.slots.iter().find(|(_, shape)| shape == weight.shape);
            // An operation with `any` slots accepts any name, and is matched by shape.
            let Some((_, expected)) = named.or_else(alike).or(self.slots.first()) else { continue };
            if weight.shape != expected {
                let rule = match node.op.spec().shape_rule {
                    ShapeRule::Experts => expert_rule(weight.shape, expected),
                    rule => rule,
                };
                let text = format!("the weight has shape {:?}, expected {expected:?}", weight.shape);
                shapes.wrong(rule, weight.slot.to_owned(), text);
            }
        }
    }
}

/// The rule that a wrong weight of experts breaks: on the number of experts, or on inputs or
/// outputs of each.
fn expert_rule(shape: &[usize], expected: &[usize]) -> ShapeRule {
    match (shape, expected) {
        ([count, _, inputs], [experts, _, takes]) if count == experts => {
            if inputs == takes {
                ShapeRule::Gives
            } else {
                ShapeRule::Takes
            }
        }
        _ => ShapeRule::Experts,
    }
}

/// A24: views inside their parents.
fn views(trace: &ResolvedIr<'_>, found: &mut Findings<'_>) {
    for v in &trace.ir.values {
        let ValueStorage::View { of, offset } = v.storage else { continue };
        let parent = value(trace, of);
        // A view with other heads divides the whole row anew, so an offset within a head has no
        // meaning.
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

/// A25: one row per batch row on both sides, or one per expert of a row.
fn rows(trace: &ResolvedIr<'_>, n: usize, node: &Node, config: &ModelConfig, found: &mut Findings<'_>) {
    let per_row = config.moe.map_or(0, |m| m.num_experts_per_tok);
    for (is_input, i, id) in each(node) {
        let port = if is_input { node.input_port(i) } else { node.output_port(i) };
        let Some(expected) = port.map_or(Some(RowCount::Rows), |port| port.rows(per_row)) else { continue };
        if value(trace, id).rows != expected {
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

/// A28: rows sorted by expert are read with the routing that sorted them.
fn routing(trace: &ResolvedIr<'_>, n: usize, node: &Node, found: &mut Findings<'_>) {
    let routing = |node: &Node| {
        let at = node.op.inputs().iter().position(|port| port.name == "topk_ids")?;
        node.inputs.get(at).copied()
    };
    for (port, id) in node.op.inputs().iter().zip(&node.inputs) {
        // With one expert per row, `Times(1)` marks the ports whose rows are sorted by expert.
        if port.rows(1) != Some(RowCount::Times(1)) {
            continue;
        }
        if let Some(maker) = trace.maker(*id, node.path)
            && routing(&trace.ir.nodes[maker]) != routing(node)
        {
            let problem = "its rows were sorted by a different routing than it reverses".into();
            found.at(Code::A28, trace.ir, n, Some("topk_ids".into()), problem);
        }
    }
}

/// A27: rows of the KV layers.
fn kv_layers(trace: &ResolvedIr<'_>, config: &ModelConfig, found: &mut Findings<'_>) {
    for kv_layer in &trace.ir.kv_layers {
        let expected = match kv_layer.kind {
            KvLayerKind::Latent => config.attention.latent_width(),
            KvLayerKind::Expanded => config.attention.expanded_width(),
            KvLayerKind::Index => config.attention.indexer.map_or(0, |indexer| indexer.width),
            KvLayerKind::ConvInputs | KvLayerKind::DeltaState => match (&config.kda, kv_layer.kind) {
                // Queries, keys and values have a convolution each.
                (Some(kda), KvLayerKind::ConvInputs) => 3 * kda.past() * kda.channels(),
                (Some(kda), _) => kda.channels() * kda.width,
                // The config has no recurrent layers, so every width is wrong.
                (None, _) => 0,
            },
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

/// A29: the named results.
fn results(trace: &ResolvedIr<'_>, config: &ModelConfig, found: &mut Findings<'_>) {
    let [(name, id)] = &trace.ir.outputs[..] else {
        let problem = format!("it has {} results, expected one: hidden or logits", trace.ir.outputs.len());
        found.add(Code::A29, None, None, problem);
        return;
    };
    let root = trace.ir.values[trace.places[id.0].root].storage;
    let (width, storage) = match name.as_str() {
        "hidden" => (config.hidden_size, ValueStorage::Hidden),
        "logits" => (config.vocab_size, ValueStorage::Logits),
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
