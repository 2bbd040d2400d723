//! The layout graph of a block of an IR.

use crate::build::builder::{Builder, ViewInput};
use crate::build::labels::{edge_label, kv_layer_word, shape, weight_line};
use crate::data::DrawingOperation;
use crate::layout::{EdgeKind, Endpoint, LayoutEdge, LayoutGraph, Vertex, VertexKind};
use latent_graph::circuit::StateShape;
use latent_graph::ir::{Epilogue, Ir, Node, Op, ValueId, ValueStorage};

/// The layout graph of a block: vertices for its operations, inputs, outputs and KV layers.
pub(crate) fn ir_graph(
    builder: &Builder<'_>,
    input: &ViewInput<'_>,
    nodes: &[usize],
    operations: &[DrawingOperation],
    phases: usize,
) -> LayoutGraph {
    let ir = input.ir;
    let mut graph = LayoutGraph { phases, ..LayoutGraph::default() };
    for (at, (&n, operation)) in nodes.iter().zip(operations).enumerate() {
        let node = &ir.nodes[n];
        let mut vertex = vertex(builder, ir, node, operation);
        vertex.operation = Some(at);
        graph.vertices.push(vertex);
    }
    for (at, &n) in nodes.iter().enumerate() {
        edges_into(ir, nodes, at, &ir.nodes[n], operations, &mut graph);
    }
    terminals(ir, nodes, operations, &mut graph);
    kv_layers(builder, ir, nodes, &mut graph);
    graph.has_residual =
        graph.touches_residual() || graph.vertices.iter().any(|vertex| vertex.kind == VertexKind::Sum);
    graph
}

fn vertex(builder: &Builder<'_>, ir: &Ir, node: &Node, operation: &DrawingOperation) -> Vertex {
    // Only additions to the residual stream are drawn on it. Other sums are cards.
    let in_place = |id: &ValueId| ir.value(ir.root(*id)).storage == ValueStorage::Hidden;
    let kind = match node.op {
        Op::Split => VertexKind::Split,
        Op::Add { .. } if node.outputs.first().is_some_and(in_place) => VertexKind::Sum,
        _ => VertexKind::Card,
    };
    // Lines below list the weight slots; only matmuls and norms have them in the title.
    let title = match node.op {
        Op::Linear | Op::RmsNorm => operation.title.clone(),
        _ => operation.op.to_owned(),
    };
    let mut vertex = Vertex::new(kind, operation.family, title);
    if kind == VertexKind::Split {
        vertex.parts = node.outputs.iter().map(|id| edge_label(ir, *id)).collect();
    }
    vertex.phase = operation.phase.unwrap_or(0);
    vertex.path = operation.path;
    vertex.pale = !operation.taken;
    vertex.prologue.clone_from(&operation.prologue);
    vertex.epilogue.clone_from(&operation.epilogue);
    for used in &operation.weights {
        vertex.lines.push(weight_line(&builder.weights[used.weight]));
    }
    if node.op == Op::MlaAttention
        || matches!(node.op, Op::AttendLatent | Op::AttendSeparate | Op::AttendExpanded)
    {
        let heads = node.inputs.first().map_or(1, |id| ir.value(*id).heads);
        vertex.lines.insert(0, format!("{heads} heads"));
    }
    let bindings = operation.weights.iter().flat_map(|used| &used.kernels).chain(&operation.kernels);
    for index in bindings {
        let name = builder.bindings[*index].kernel.to_owned();
        if builder.options.kernels && !vertex.kernels.contains(&name) {
            vertex.kernels.push(name);
        }
    }
    if let Some(run) = operation.run.as_ref().filter(|_| builder.options.kernels) {
        let calls = |n: usize| if n == 1 { String::new() } else { format!(" ×{n}") };
        vertex.kernels.extend(run.kernels.iter().map(|call| call.kernel.clone() + &calls(call.calls)));
    }
    let mut label = operation.title.clone();
    if let Some(phase) = operation.phase {
        label = format!("phase {phase}: {label}");
    }
    for words in operation.prologue.iter().chain(&operation.epilogue) {
        label = format!("{label}, {words}");
    }
    vertex.label = label;
    vertex
}

/// Vertices for token ids and logits.
fn terminals(ir: &Ir, nodes: &[usize], operations: &[DrawingOperation], graph: &mut LayoutGraph) {
    for (at, &n) in nodes.iter().enumerate() {
        let node = &ir.nodes[n];
        for id in &node.inputs {
            if ir.value(*id).storage == ValueStorage::Tokens {
                let pill = Vertex::new(VertexKind::Pill, "io", format!("tokens {}", shape(ir, *id)));
                graph.vertices.push(pill);
                let from = Endpoint::Vertex(graph.vertices.len() - 1);
                graph.edges.push(LayoutEdge::plain(from, Endpoint::Vertex(at), false));
            }
        }
        for id in &node.outputs {
            // Adapter terms are added to the logits in place. Only the last value is the output.
            if ir.value(ir.root(*id)).storage == ValueStorage::Logits && ir.readers(*id).is_empty() {
                let mut pill = Vertex::new(VertexKind::Pill, "io", format!("logits {}", shape(ir, *id)));
                pill.phase = operations[at].phase.unwrap_or(0);
                graph.vertices.push(pill);
                let to = Endpoint::Vertex(graph.vertices.len() - 1);
                graph.edges.push(LayoutEdge::plain(Endpoint::Vertex(at), to, false));
            }
        }
    }
}

/// A vertex for each KV layer that the nodes read or write.
fn kv_layers(builder: &Builder<'_>, ir: &Ir, nodes: &[usize], graph: &mut LayoutGraph) {
    let mut streams: Vec<usize> = nodes.iter().filter_map(|n| ir.nodes[*n].kv_layer.map(|s| s.0)).collect();
    // Nodes of one layer follow each other, so this removes most duplicates before the sort.
    streams.dedup();
    streams.sort_unstable();
    streams.dedup();
    for stream in streams {
        let s = &ir.kv_layers[stream];
        let ty = builder.options.bind.cache;
        let (name, lines) = match s.state {
            Some(StateShape { heads, rows, columns }) => (
                kv_layer_word(s.kind).to_owned(),
                [format!("{heads} × {rows} × {columns} × f32"), format!("{} B per sequence", s.bytes(ty))],
            ),
            None => (
                format!("{} cache", kv_layer_word(s.kind)),
                [format!("{} × {ty}", s.width), format!("{} B per token", s.bytes(ty))],
            ),
        };
        let mut vertex = Vertex::new(VertexKind::Cylinder, "cache", name);
        vertex.lines.extend(lines);
        graph.vertices.push(vertex);
        let cylinder = Endpoint::Vertex(graph.vertices.len() - 1);
        for (at, n) in nodes.iter().enumerate() {
            let node = &ir.nodes[*n];
            if node.kv_layer.is_none_or(|s| s.0 != stream) {
                continue;
            }
            let (writes, reads) = (node.op.spec().kv.stores, node.op.spec().kv.attends);
            // A recurrent operation reads and replaces its state, so it has both edges.
            let ends = [(Endpoint::Vertex(at), cylinder), (cylinder, Endpoint::Vertex(at))];
            let pale = graph.vertices[at].pale;
            for ((from, to), _) in ends.into_iter().zip([writes, reads]).filter(|(_, there)| *there) {
                graph.edges.push(LayoutEdge { from, to, label: String::new(), kind: EdgeKind::Cache, pale });
            }
        }
    }
}

/// Adds edges to the node at `at` from the producers of its inputs, and from it to the residual
/// stream.
fn edges_into(
    ir: &Ir,
    nodes: &[usize],
    at: usize,
    node: &Node,
    operations: &[DrawingOperation],
    graph: &mut LayoutGraph,
) {
    let hidden = |id: ValueId| ir.value(ir.root(id)).storage == ValueStorage::Hidden;
    let onto_residual = graph.vertices[at].kind == VertexKind::Sum;
    // The folded residual is drawn as a sum on the residual stream and not as an input.
    let adds = matches!(node.epilogue, Epilogue::AddTo(_));
    let read = &node.inputs[..node.inputs.len() - usize::from(adds)];
    let mut seen = Vec::new();
    for id in read {
        // One edge per value, also if it is read at two ports.
        if seen.contains(id) || (onto_residual && hidden(*id)) {
            continue;
        }
        seen.push(*id);
        let pale = !operations[at].taken;
        if hidden(*id) {
            let to = Endpoint::Vertex(at);
            graph.edges.push(LayoutEdge::plain(Endpoint::Residual, to, pale));
            continue;
        }
        for (from, &m) in nodes.iter().enumerate().take(at) {
            let producer = &ir.nodes[m];
            if producer.outputs.contains(id) && producer.path.meets(node.path) {
                // In-place sums give one value several producers on one path. Only the last one
                // counts.
                let later = nodes[from + 1..at]
                    .iter()
                    .any(|&k| ir.nodes[k].outputs.contains(id) && ir.nodes[k].path == producer.path);
                if later {
                    continue;
                }
                graph.edges.push(LayoutEdge {
                    from: Endpoint::Vertex(from),
                    to: Endpoint::Vertex(at),
                    label: edge_label(ir, *id),
                    kind: EdgeKind::Value,
                    pale: pale || !operations[from].taken,
                });
            }
        }
    }
    let writes = node.outputs.iter().any(|id| hidden(*id));
    if writes && !onto_residual {
        let pale = !operations[at].taken;
        let from = Endpoint::Vertex(at);
        graph.edges.push(LayoutEdge::plain(from, Endpoint::Residual, pale));
    }
}
