//! The circuit of an architecture as blocks: operations with their conditions, those that this model does not take drawn pale.

use crate::blocks::Shared;
use crate::data::{Block, FormatCard, Operation, Port, WeightCard, WeightUse};
use crate::paint;
use crate::sketch::{End, Form, Item, Kind, Sketch, Wire};
use crate::words::family_of;
use latent_graph::GraphError;
use latent_graph::circuit::{Circuit, ConfigVars, Naming, OP_WORDS, OpSpec};
use latent_graph::config::LayerKind;
use std::collections::HashMap;

/// The blocks of `circuit` with its conditions judged for the config: embedding, one layer, head.
pub(crate) fn blocks(
    shared: &mut Shared<'_>,
    circuit: &Circuit,
    naming: Naming,
) -> Result<Vec<usize>, GraphError> {
    let layers = shared.config.layers;
    let parts = [
        ("Embedding", "from token ids to the residual stream", &circuit.embed, 1),
        ("Every layer", "conditions in brackets; pale: not in this model", &circuit.layer, layers),
        ("Head", "from the residual stream to logits", &circuit.head, 1),
    ];
    let mut made = Vec::new();
    for (title, subtitle, specs, count) in parts {
        let operations = specs
            .iter()
            .map(|spec| operation(shared, circuit, naming, spec, title == "Every layer"))
            .collect::<Result<Vec<_>, _>>()?;
        let sketch = sketch(shared, specs, &operations);
        let painted = paint::block(&sketch, title, subtitle, count);
        let block = Block {
            title: title.to_owned(),
            subtitle: subtitle.to_owned(),
            layers: if count > 1 { vec![(0, count - 1)] } else { Vec::new() },
            count,
            phases: 0,
            width: painted.width,
            height: painted.height,
            operations,
            scene: painted.marks,
        };
        made.push(shared.intern(block));
    }
    Ok(made)
}

fn operation(
    shared: &mut Shared<'_>,
    circuit: &Circuit,
    naming: Naming,
    spec: &OpSpec,
    in_layer: bool,
) -> Result<Operation, GraphError> {
    let config = shared.config;
    let kinds: Vec<Option<LayerKind>> =
        if in_layer { [LayerKind::Dense, LayerKind::Moe].map(Some).to_vec() } else { vec![None] };
    let mut taken = false;
    for kind in kinds {
        let exists = kind.is_none_or(|kind| config.layer_kinds[..config.layers].contains(&kind));
        taken |= exists && ConfigVars::of(config, kind).hold(&spec.when, &circuit.name)?;
    }
    let mut weights = Vec::new();
    for slot in &spec.weights {
        let Some((found, _)) = circuit.slot(slot) else { continue };
        let tensor = match naming {
            Naming::Gguf => found.gguf.clone(),
            Naming::HuggingFace => found.hf.clone(),
        };
        let card = WeightCard {
            slot: slot.clone(),
            tensor: tensor.unwrap_or_else(|| "(no name in files of this kind)".into()),
            shape: Vec::new(),
            formats: vec![FormatCard { format: "", layers: found.shape.join(" × "), count: 0, bytes: 0 }],
        };
        let index = shared.weights.iter().position(|other| *other == card).unwrap_or_else(|| {
            shared.weights.push(card);
            shared.weights.len() - 1
        });
        weights.push(WeightUse { weight: index, kernels: Vec::new() });
    }
    let port = |name: &String| Port { name: name.clone(), shape: String::new(), place: String::new() };
    let op = OP_WORDS.into_iter().find(|word| *word == spec.op).unwrap_or("linear");
    let slots = spec.weights.first().map_or("", String::as_str);
    Ok(Operation {
        op,
        title: match spec.weights.len() {
            0 => spec.op.clone(),
            _ => format!("{} {}", spec.op, spec.weights.join(" + ")),
        },
        family: family_of(op, slots),
        line: String::new(),
        phase: None,
        lane: None,
        taken,
        when: spec.when.clone(),
        inputs: spec.inputs.iter().map(port).collect(),
        outputs: spec.outputs.iter().map(port).collect(),
        before: Vec::new(),
        after: spec.by.iter().map(|factor| format!("× {factor}")).collect(),
        weights,
        kernels: Vec::new(),
        cache: None,
        cost: None,
    })
}

/// Values that are the residual stream in every circuit.
fn is_residual(name: &str) -> bool {
    name == "h" || name == "h_mid"
}

fn sketch(shared: &Shared<'_>, specs: &[OpSpec], operations: &[Operation]) -> Sketch {
    let mut sketch = Sketch::default();
    // who makes each name now; alternatives under opposite conditions make it together
    let mut makers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, (spec, operation)) in specs.iter().zip(operations).enumerate() {
        let onto = spec.op == "add" && spec.outputs.first().is_some_and(|name| is_residual(name));
        let form = match spec.op.as_str() {
            "split" => Form::Split,
            _ if onto => Form::Sum,
            _ => Form::Card,
        };
        let title = match spec.op.as_str() {
            "linear" | "rms_norm" => operation.title.clone(),
            _ => spec.op.clone(),
        };
        let mut item = Item::new(form, operation.family, title);
        if form == Form::Split {
            item.parts.clone_from(&spec.outputs);
        }
        item.operation = Some(at);
        item.pale = !operation.taken;
        for used in &operation.weights {
            let card = &shared.weights[used.weight];
            item.lines.push(format!("{}  [{}]", card.slot, card.formats[0].layers));
        }
        if !spec.when.is_empty() {
            item.before.push(format!("[{}]", spec.when.join(", ")));
        }
        if form == Form::Card {
            item.after.clone_from(&operation.after);
        }
        item.label.clone_from(&operation.title);
        sketch.items.push(item);
        let pale = !operation.taken;
        for name in &spec.inputs {
            if is_residual(name) {
                if !onto {
                    let to = End::Item(at);
                    let label = String::new();
                    sketch.wires.push(Wire { from: End::Spine, to, label, kind: Kind::Value, pale });
                }
                continue;
            }
            for &from in makers.get(name.as_str()).into_iter().flatten() {
                let pale = pale || !operations[from].taken;
                sketch.wires.push(Wire {
                    from: End::Item(from),
                    to: End::Item(at),
                    label: name.clone(),
                    kind: Kind::Value,
                    pale,
                });
            }
        }
        for name in &spec.outputs {
            if is_residual(name) && !onto {
                let from = End::Item(at);
                let label = String::new();
                sketch.wires.push(Wire { from, to: End::Spine, label, kind: Kind::Value, pale });
            }
            let known = makers.entry(name).or_default();
            // an operation that reads what it makes, or stands under no condition, replaces earlier makers
            if spec.when.is_empty() || spec.inputs.contains(name) {
                known.clear();
            }
            known.push(at);
        }
    }
    sketch.spine = sketch.wires.iter().any(|w| w.from == End::Spine || w.to == End::Spine);
    sketch
}
