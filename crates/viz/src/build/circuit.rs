//! The blocks of a circuit: operations with their conditions; those that this model does not use are pale.

use crate::build::builder::Builder;
use crate::build::labels::family_of;
use crate::data::{Block, FormatInfo, Operation, Port, WeightInfo, WeightUse};
use crate::layout::{Edge, Endpoint, LayoutGraph, Vertex, VertexKind};
use crate::render;
use latent_graph::GraphError;
use latent_graph::circuit::{Circuit, ConfigVars, Naming, OP_WORDS, OpSpec};
use latent_graph::config::LayerKind;
use std::collections::HashMap;

/// The blocks of `circuit`, with conditions evaluated for the config: embedding, one layer, head.
pub(crate) fn blocks(
    builder: &mut Builder<'_>,
    circuit: &Circuit,
    naming: Naming,
) -> Result<Vec<usize>, GraphError> {
    let layers = builder.config.layers;
    let parts = [
        ("Embedding", "from token ids to the residual stream", &circuit.embed, 1),
        ("Every layer", "conditions in brackets; pale: not in this model", &circuit.layer, layers),
        ("Head", "from the residual stream to logits", &circuit.head, 1),
    ];
    let mut made = Vec::new();
    for (title, subtitle, specs, count) in parts {
        let operations = specs
            .iter()
            .map(|spec| operation(builder, circuit, naming, spec, title == "Every layer"))
            .collect::<Result<Vec<_>, _>>()?;
        let graph = graph(builder, specs, &operations);
        let rendered = render::block(&graph, title, subtitle, count);
        let block = Block {
            title: title.to_owned(),
            subtitle: subtitle.to_owned(),
            layers: if count > 1 { vec![(0, count - 1)] } else { Vec::new() },
            count,
            phases: 0,
            width: rendered.width,
            height: rendered.height,
            operations,
            scene: rendered.primitives,
        };
        made.push(builder.intern_block(block));
    }
    Ok(made)
}

fn operation(
    builder: &mut Builder<'_>,
    circuit: &Circuit,
    naming: Naming,
    spec: &OpSpec,
    in_layer: bool,
) -> Result<Operation, GraphError> {
    let config = builder.config;
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
        let info = WeightInfo {
            slot: slot.clone(),
            tensor: tensor.unwrap_or_else(|| "(no name in files of this kind)".into()),
            shape: Vec::new(),
            formats: vec![FormatInfo { format: "", layers: found.shape.join(" × "), count: 0, bytes: 0 }],
        };
        let index = builder.intern_weight(info);
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
        path: None,
        taken,
        when: spec.when.clone(),
        inputs: spec.inputs.iter().map(port).collect(),
        outputs: spec.outputs.iter().map(port).collect(),
        prologue: Vec::new(),
        epilogue: spec.by.iter().map(|factor| format!("× {factor}")).collect(),
        weights,
        kernels: Vec::new(),
        kv_layer: None,
        cost: None,
    })
}

/// The names of the residual stream in every circuit.
fn is_residual(name: &str) -> bool {
    name == "h" || name == "h_mid"
}

fn graph(builder: &Builder<'_>, specs: &[OpSpec], operations: &[Operation]) -> LayoutGraph {
    let mut graph = LayoutGraph::default();
    // the producers of each name; alternatives under opposite conditions are all kept
    let mut producers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, (spec, operation)) in specs.iter().zip(operations).enumerate() {
        let mut vertex = vertex(builder, spec, operation);
        vertex.operation = Some(at);
        let onto_residual = vertex.kind == VertexKind::Sum;
        graph.vertices.push(vertex);
        let pale = !operation.taken;
        for name in &spec.inputs {
            if is_residual(name) {
                if !onto_residual {
                    graph.edges.push(Edge::plain(Endpoint::Residual, Endpoint::Vertex(at), pale));
                }
                continue;
            }
            for &from in producers.get(name.as_str()).into_iter().flatten() {
                let pale = pale || !operations[from].taken;
                let edge = Edge::plain(Endpoint::Vertex(from), Endpoint::Vertex(at), pale);
                graph.edges.push(Edge { label: name.clone(), ..edge });
            }
        }
        for name in &spec.outputs {
            if is_residual(name) && !onto_residual {
                graph.edges.push(Edge::plain(Endpoint::Vertex(at), Endpoint::Residual, pale));
            }
            let known = producers.entry(name).or_default();
            // an unconditional or in-place operation replaces earlier producers
            if spec.when.is_empty() || spec.inputs.contains(name) {
                known.clear();
            }
            known.push(at);
        }
    }
    graph.has_residual = graph.touches_residual();
    graph
}

fn vertex(builder: &Builder<'_>, spec: &OpSpec, operation: &Operation) -> Vertex {
    let kind = match spec.op.as_str() {
        "split" => VertexKind::Split,
        "add" if spec.outputs.first().is_some_and(|name| is_residual(name)) => VertexKind::Sum,
        _ => VertexKind::Card,
    };
    let title = match spec.op.as_str() {
        "linear" | "rms_norm" => operation.title.clone(),
        _ => spec.op.clone(),
    };
    let mut vertex = Vertex::new(kind, operation.family, title);
    if kind == VertexKind::Split {
        vertex.parts.clone_from(&spec.outputs);
    }
    vertex.pale = !operation.taken;
    for used in &operation.weights {
        let weight = &builder.weights[used.weight];
        vertex.lines.push(format!("{}  [{}]", weight.slot, weight.formats[0].layers));
    }
    if !spec.when.is_empty() {
        vertex.prologue.push(format!("[{}]", spec.when.join(", ")));
    }
    if kind == VertexKind::Card {
        vertex.epilogue.clone_from(&operation.epilogue);
    }
    vertex.label.clone_from(&operation.title);
    vertex
}
