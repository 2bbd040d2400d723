//! The blocks of a circuit: operations with their conditions. Operations that this model does not
//! use are pale.

use crate::build::builder::Builder;
use crate::build::fold::{list, spans};
use crate::build::labels::family_of;
use crate::data::{DrawingBlock, DrawingOperation, FormatInfo, OperationPort, OperationWeight, WeightInfo};
use crate::layout::{Endpoint, LayoutEdge, LayoutGraph, Vertex, VertexKind};
use crate::render;
use latent_graph::GraphError;
use latent_graph::circuit::{
    self, BlockKind, Circuit, ConfigVars, OP_WORDS, OpSpec, StagePart, TensorNaming,
};
use std::collections::HashMap;

/// A block of the circuit, and the layers of the model that have it.
struct CircuitBlock<'a> {
    name: &'a str,
    block: &'a circuit::Block,
    layers: Vec<usize>,
}

/// The blocks of the circuit in the order in which stages run them. Conditions are evaluated for
/// the config.
pub(crate) fn blocks(builder: &mut Builder<'_>, naming: TensorNaming) -> Result<Vec<usize>, GraphError> {
    let circuit = builder.circuit;
    let mut made = Vec::new();
    for name in names(circuit) {
        let Some(block) = circuit.blocks.get(name) else { continue };
        let has = |layer: &usize| builder.layers[*layer].blocks().contains(&name);
        let part = CircuitBlock { name, block, layers: (0..builder.config.layers).filter(has).collect() };
        let operations = block
            .ops
            .iter()
            .map(|spec| operation(builder, &part, naming, spec))
            .collect::<Result<Vec<_>, _>>()?;
        let graph = graph(builder, block, &operations);
        // The first two stages are the decoder's; the others belong to the MTP layer.
        let mut mtp = circuit.stages.iter().skip(2).flat_map(|stage| &stage.blocks);
        let of_mtp = mtp.any(|part| *part == StagePart::Block(name.to_owned()));
        let title = match block.kind {
            BlockKind::Embed if of_mtp => format!("MTP input: {name}"),
            BlockKind::Head if of_mtp => format!("MTP head: {name}"),
            BlockKind::Embed => "Embedding".to_owned(),
            BlockKind::Attention => format!("Attention: {name}"),
            BlockKind::FeedForward => format!("Feed-forward: {name}"),
            BlockKind::Head => "Head".to_owned(),
        };
        let subtitle = match (block.kind.of_layer(), part.layers.len()) {
            (false, _) => block.about.clone(),
            (true, 0) => "in no layer of this model".to_owned(),
            (true, 1) => format!("layer {}; {}", list(&part.layers), block.about),
            (true, _) => format!("layers {}; {}", list(&part.layers), block.about),
        };
        let count = part.layers.len().max(1);
        let rendered = render::block(&graph, &title, &subtitle, count);
        let block = DrawingBlock {
            title,
            subtitle,
            layers: spans(&part.layers),
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

/// The names of the blocks of stages and layers, each once.
fn names(circuit: &Circuit) -> Vec<&str> {
    let rules = [&circuit.layers.attention, &circuit.layers.feed_forward];
    let of_layers = || rules.into_iter().flatten().map(|rule| rule.block.as_str()).collect::<Vec<_>>();
    let mut names: Vec<&str> = Vec::new();
    for part in circuit.stages.iter().flat_map(|stage| &stage.blocks) {
        let more = match part {
            StagePart::Layers | StagePart::MtpLayers => of_layers(),
            StagePart::Block(name) => vec![name.as_str()],
        };
        more.into_iter().for_each(|name| {
            if !names.contains(&name) {
                names.push(name);
            }
        });
    }
    names
}

fn operation(
    builder: &mut Builder<'_>,
    part: &CircuitBlock<'_>,
    naming: TensorNaming,
    spec: &OpSpec,
) -> Result<DrawingOperation, GraphError> {
    let (circuit, config) = (builder.circuit, builder.config);
    let mut places: Vec<Option<usize>> = part.layers.iter().copied().map(Some).collect();
    // Blocks outside of layers are evaluated for the model as a whole.
    if !part.block.kind.of_layer() {
        places.push(None);
    }
    // Taken if any layer of the block meets the conditions.
    let mut taken = false;
    for layer in places {
        taken |= ConfigVars::of(config, layer).hold(&spec.when, &circuit.name)?;
    }
    let mut weights = Vec::new();
    for slot in &spec.weights {
        let Some((found, _)) = circuit.slot(part.name, slot) else { continue };
        let tensor = match naming {
            TensorNaming::Gguf => found.gguf.clone(),
            TensorNaming::HuggingFace => found.hf.clone(),
        };
        let info = WeightInfo {
            slot: slot.clone(),
            tensor: tensor.unwrap_or_else(|| "(no name in files of this kind)".into()),
            shape: Vec::new(),
            // A circuit has no formats. The field carries the symbolic shape instead.
            formats: vec![FormatInfo { format: "", layers: found.shape.join(" × "), count: 0, bytes: 0 }],
        };
        let index = builder.intern_weight(info);
        weights.push(OperationWeight { weight: index, kernels: Vec::new() });
    }
    let port =
        |name: &String| OperationPort { name: name.clone(), shape: String::new(), place: String::new() };
    // `op` must be `'static`. The circuit's check refuses unknown words, so one is found.
    let op = OP_WORDS.iter().copied().find(|word| *word == spec.op).unwrap_or("linear");
    let slots = spec.weights.first().map_or("", String::as_str);
    Ok(DrawingOperation {
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
        run: None,
        cost: None,
    })
}

/// Whether a value of a block is the residual stream: inputs and outputs of a half of a layer, the
/// embedding's output, the head's input.
fn is_residual(block: &circuit::Block, name: &str) -> bool {
    let (enters, leaves) = match block.kind {
        BlockKind::Embed => (false, true),
        BlockKind::Attention | BlockKind::FeedForward => (true, true),
        BlockKind::Head => (true, false),
    };
    let has = |list: &[String]| list.iter().any(|value| value == name);
    (enters && has(&block.inputs)) || (leaves && has(&block.outputs))
}

fn graph(builder: &Builder<'_>, block: &circuit::Block, operations: &[DrawingOperation]) -> LayoutGraph {
    let mut graph = LayoutGraph::default();
    // The producers of each name. Alternatives under opposite conditions are all kept.
    let mut producers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, (spec, operation)) in block.ops.iter().zip(operations).enumerate() {
        let mut vertex = vertex(builder, block, spec, operation);
        vertex.operation = Some(at);
        let onto_residual = vertex.kind == VertexKind::Sum;
        graph.vertices.push(vertex);
        let pale = !operation.taken;
        for name in &spec.inputs {
            if is_residual(block, name) {
                // An addition is drawn on the residual stream, so its base needs no edge.
                if !onto_residual {
                    graph.edges.push(LayoutEdge::plain(Endpoint::Residual, Endpoint::Vertex(at), pale));
                }
                continue;
            }
            for &from in producers.get(name.as_str()).into_iter().flatten() {
                let pale = pale || !operations[from].taken;
                let edge = LayoutEdge::plain(Endpoint::Vertex(from), Endpoint::Vertex(at), pale);
                graph.edges.push(LayoutEdge { label: name.clone(), ..edge });
            }
        }
        for name in &spec.outputs {
            if is_residual(block, name) && !onto_residual {
                graph.edges.push(LayoutEdge::plain(Endpoint::Vertex(at), Endpoint::Residual, pale));
            }
            let known = producers.entry(name).or_default();
            // An unconditional or in-place operation replaces earlier producers.
            if spec.when.is_empty() || spec.inputs.contains(name) {
                known.clear();
            }
            known.push(at);
        }
    }
    graph.has_residual = graph.touches_residual();
    graph
}

fn vertex(
    builder: &Builder<'_>,
    block: &circuit::Block,
    spec: &OpSpec,
    operation: &DrawingOperation,
) -> Vertex {
    let kind = match spec.op.as_str() {
        "split" => VertexKind::Split,
        "add" if spec.outputs.first().is_some_and(|name| is_residual(block, name)) => VertexKind::Sum,
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
