//! From the operations of a block to the boxes and wires that are drawn.

use crate::blocks::{Shared, Source};
use crate::data::Operation;
use crate::sketch::{End, Form, Item, Kind, Sketch, Wire};
use crate::words::{shape, stream_word, weight_line, wire_label};
use latent_graph::ir::{Epilogue, Ir, Node, Op, Storage, ValueId};

impl Shared<'_> {
    pub(crate) fn sketch(
        &self,
        source: &Source<'_>,
        nodes: &[usize],
        operations: &[Operation],
        phases: usize,
    ) -> Sketch {
        let ir = source.ir;
        let mut sketch = Sketch { phases, ..Sketch::default() };
        for (at, (&n, operation)) in nodes.iter().zip(operations).enumerate() {
            let node = &ir.nodes[n];
            let mut item = self.item(ir, node, operation);
            item.operation = Some(at);
            sketch.items.push(item);
        }
        for (at, &n) in nodes.iter().enumerate() {
            wires_into(ir, nodes, at, &ir.nodes[n], operations, &mut sketch);
        }
        self.ends(ir, nodes, operations, &mut sketch);
        self.cylinders(ir, nodes, &mut sketch);
        sketch.spine = sketch.items.iter().any(|item| item.form == Form::Sum)
            || sketch.wires.iter().any(|w| w.from == End::Spine || w.to == End::Spine);
        sketch
    }

    fn item(&self, ir: &Ir, node: &Node, operation: &Operation) -> Item {
        let in_place = |id: &ValueId| ir.value(ir.root(*id)).storage == Storage::Hidden;
        let form = match node.op {
            Op::Split => Form::Split,
            Op::Add { .. } if node.outputs.first().is_some_and(in_place) => Form::Sum,
            _ => Form::Card,
        };
        // slots stand in the lines below; a product is best known by them
        let title = match node.op {
            Op::Linear | Op::RmsNorm => operation.title.clone(),
            _ => operation.op.to_owned(),
        };
        let mut item = Item::new(form, operation.family, title);
        if form == Form::Split {
            item.parts = node.outputs.iter().map(|id| wire_label(ir, *id)).collect();
        }
        item.phase = operation.phase.unwrap_or(0);
        item.lane = operation.lane;
        item.pale = !operation.taken;
        item.before.clone_from(&operation.before);
        item.after.clone_from(&operation.after);
        for used in &operation.weights {
            item.lines.push(weight_line(&self.weights[used.weight]));
        }
        if node.op == Op::MlaAttention
            || matches!(node.op, Op::AttendLatent | Op::AttendSeparate | Op::AttendExpanded)
        {
            let heads = node.inputs.first().map_or(1, |id| ir.value(*id).heads);
            item.lines.insert(0, format!("{heads} heads"));
        }
        let bindings = operation.weights.iter().flat_map(|used| &used.kernels).chain(&operation.kernels);
        for index in bindings {
            let name = self.bindings[*index].kernel.to_owned();
            if self.options.kernels && !item.fine.contains(&name) {
                item.fine.push(name);
            }
        }
        let mut label = operation.title.clone();
        if let Some(phase) = operation.phase {
            label = format!("phase {phase}: {label}");
        }
        for words in operation.before.iter().chain(&operation.after) {
            label = format!("{label}, {words}");
        }
        item.label = label;
        item
    }

    /// Pills for token ids and logits.
    fn ends(&self, ir: &Ir, nodes: &[usize], operations: &[Operation], sketch: &mut Sketch) {
        for (at, &n) in nodes.iter().enumerate() {
            let node = &ir.nodes[n];
            for id in &node.inputs {
                if ir.value(*id).storage == Storage::Tokens {
                    let pill = Item::new(Form::Pill, "io", format!("tokens {}", shape(ir, *id)));
                    sketch.items.push(pill);
                    let from = End::Item(sketch.items.len() - 1);
                    let wire = Wire {
                        from,
                        to: End::Item(at),
                        label: String::new(),
                        kind: Kind::Value,
                        pale: false,
                    };
                    sketch.wires.push(wire);
                }
            }
            for id in &node.outputs {
                if ir.value(ir.root(*id)).storage == Storage::Logits && ir.readers(*id).is_empty() {
                    let mut pill = Item::new(Form::Pill, "io", format!("logits {}", shape(ir, *id)));
                    pill.phase = operations[at].phase.unwrap_or(0);
                    sketch.items.push(pill);
                    let to = End::Item(sketch.items.len() - 1);
                    let wire = Wire {
                        from: End::Item(at),
                        to,
                        label: String::new(),
                        kind: Kind::Value,
                        pale: false,
                    };
                    sketch.wires.push(wire);
                }
            }
        }
    }

    /// A cylinder for each cache stream that the nodes touch.
    fn cylinders(&self, ir: &Ir, nodes: &[usize], sketch: &mut Sketch) {
        let mut streams: Vec<usize> =
            nodes.iter().filter_map(|n| ir.nodes[*n].kv_layer.map(|s| s.0)).collect();
        streams.dedup();
        streams.sort_unstable();
        streams.dedup();
        for stream in streams {
            let s = &ir.kv_layers[stream];
            let mut item = Item::new(Form::Cylinder, "cache", format!("{} cache", stream_word(s.kind)));
            item.lines.push(format!("{} × {}", s.width, self.options.bind.cache));
            item.lines.push(format!("{} B a token", s.row(self.options.bind.cache).bytes()));
            sketch.items.push(item);
            let cylinder = End::Item(sketch.items.len() - 1);
            for (at, n) in nodes.iter().enumerate() {
                let node = &ir.nodes[*n];
                if node.kv_layer.is_none_or(|s| s.0 != stream) {
                    continue;
                }
                let writes = node.outputs.is_empty();
                let (from, to) = if writes { (End::Item(at), cylinder) } else { (cylinder, End::Item(at)) };
                let pale = sketch.items[at].pale;
                sketch.wires.push(Wire { from, to, label: String::new(), kind: Kind::Cache, pale });
            }
        }
    }
}

/// Wires to the node at `at` from what makes its inputs, and from it to the residual stream.
fn wires_into(
    ir: &Ir,
    nodes: &[usize],
    at: usize,
    node: &Node,
    operations: &[Operation],
    sketch: &mut Sketch,
) {
    let hidden = |id: ValueId| ir.value(ir.root(id)).storage == Storage::Hidden;
    let onto_spine = sketch.items[at].form == Form::Sum;
    let adds = matches!(node.epilogue, Epilogue::AddTo(_));
    let read = &node.inputs[..node.inputs.len() - usize::from(adds)];
    let mut seen = Vec::new();
    for id in read {
        if seen.contains(id) || (onto_spine && hidden(*id)) {
            continue;
        }
        seen.push(*id);
        let pale = !operations[at].taken;
        if hidden(*id) {
            let to = End::Item(at);
            sketch.wires.push(Wire { from: End::Spine, to, label: String::new(), kind: Kind::Value, pale });
            continue;
        }
        for (from, &m) in nodes.iter().enumerate().take(at) {
            let maker = &ir.nodes[m];
            if maker.outputs.contains(id) && maker.path.meets(node.path) {
                let later = nodes[from + 1..at]
                    .iter()
                    .any(|&k| ir.nodes[k].outputs.contains(id) && ir.nodes[k].path == maker.path);
                if later {
                    continue;
                }
                sketch.wires.push(Wire {
                    from: End::Item(from),
                    to: End::Item(at),
                    label: wire_label(ir, *id),
                    kind: Kind::Value,
                    pale: pale || !operations[from].taken,
                });
            }
        }
    }
    let writes = node.outputs.iter().any(|id| hidden(*id));
    if writes && !onto_spine {
        let pale = !operations[at].taken;
        let from = End::Item(at);
        sketch.wires.push(Wire { from, to: End::Spine, label: String::new(), kind: Kind::Value, pale });
    }
}
