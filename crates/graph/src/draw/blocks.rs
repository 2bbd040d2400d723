//! From an IR, or a plan, to blocks: operations with all that is known of them, and the sketch that is drawn.

use super::data::{
    Binding, Block, CacheUse, CostCard, FormatCard, Operation, Other, Port, WeightCard, WeightUse,
};
use super::fold::{Place, Run, list, runs, spans};
use super::sketch::{End, Form, Item, Kind, Sketch, Wire};
use super::{Options, paint};
use crate::contract::{Contract, LayerKind};
use crate::ir::{Epilogue, Ir, Lane, Node, Op, RowCount, Step, Storage, StreamKind, ValueId};
use crate::passes::{Request, asked};
use base::{KernelContract, OpKind, TensorType};
use std::collections::HashMap;

/// What all views of a drawing share.
pub(super) struct Shared<'a> {
    pub(super) contract: &'a Contract,
    pub(super) kernels: &'a [KernelContract],
    pub(super) options: &'a Options,
    pub(super) weights: Vec<WeightCard>,
    pub(super) bindings: Vec<Binding>,
    requests: HashMap<(OpKind, Option<TensorType>), usize>,
    pub(super) blocks: Vec<Block>,
}

/// What one view draws.
pub(super) struct Source<'a> {
    pub(super) ir: &'a Ir,
    /// Phases, where it is a plan.
    pub(super) phases: Option<&'a [usize]>,
    /// The step that costs are counted for, where it is a plan.
    pub(super) step: Option<Step>,
}

impl<'a> Shared<'a> {
    pub(super) fn new(
        contract: &'a Contract,
        kernels: &'a [KernelContract],
        options: &'a Options,
    ) -> Shared<'a> {
        Shared {
            contract,
            kernels,
            options,
            weights: Vec::new(),
            bindings: Vec::new(),
            requests: HashMap::new(),
            blocks: Vec::new(),
        }
    }

    /// The blocks of a view, with the runs that they draw: index, run, first phase.
    pub(super) fn blocks_of(&mut self, source: &Source<'_>) -> Vec<(usize, Run, usize)> {
        let zero = vec![0; source.ir.nodes.len()];
        let phases = source.phases.unwrap_or(&zero);
        let runs = runs(source.ir, phases);
        runs.into_iter()
            .map(|run| {
                let first = run.nodes[0].iter().map(|n| phases[*n]).min().unwrap_or(0);
                let block = self.block(source, &run, first);
                (self.intern(block), run, first)
            })
            .collect()
    }

    /// The index of a block, which other views may have too.
    pub(super) fn intern(&mut self, block: Block) -> usize {
        let found = self.blocks.iter().position(|other| *other == block);
        found.unwrap_or_else(|| {
            self.blocks.push(block);
            self.blocks.len() - 1
        })
    }

    fn block(&mut self, source: &Source<'_>, run: &Run, first_phase: usize) -> Block {
        let count = run.nodes.len();
        let (title, subtitle, layers) = self.heading(run);
        let operations: Vec<Operation> =
            (0..run.nodes[0].len()).map(|at| self.operation(source, run, at, first_phase)).collect();
        let phases = source
            .phases
            .map_or(0, |phases| run.nodes[0].iter().map(|n| phases[*n] - first_phase + 1).max().unwrap_or(0));
        let sketch = self.sketch(source, &run.nodes[0], &operations, phases);
        let painted = paint::block(&sketch, &title, &subtitle, count);
        Block {
            title,
            subtitle,
            layers,
            count,
            phases,
            width: painted.width,
            height: painted.height,
            operations,
            scene: painted.marks,
        }
    }

    fn heading(&self, run: &Run) -> (String, String, Vec<(usize, usize)>) {
        match &run.place {
            Place::Before => ("Embedding".into(), "from token ids to the residual stream".into(), Vec::new()),
            Place::After => ("Head".into(), "from the residual stream to logits".into(), Vec::new()),
            Place::Layers(layers) => {
                let plural = if layers.len() == 1 { "Layer" } else { "Layers" };
                let about = match self.contract.layer_kinds[layers[0]] {
                    LayerKind::Dense => "attention, then a dense feed-forward block".to_owned(),
                    LayerKind::Moe => {
                        let moe = self.contract.moe.map_or((0, 0), |m| (m.experts_used, m.experts));
                        format!("attention, then {} of {} experts", moe.0, moe.1)
                    }
                };
                (format!("{plural} {}", list(layers)), about, spans(layers))
            }
        }
    }

    fn operation(&mut self, source: &Source<'_>, run: &Run, at: usize, first_phase: usize) -> Operation {
        let ir = source.ir;
        let n = run.nodes[0][at];
        let node = &ir.nodes[n];
        let adds = matches!(node.epilogue, Epilogue::AddTo(_));
        let read = &node.inputs[..node.inputs.len() - usize::from(adds)];
        let bound = source.phases.is_some();
        let mut kernels = Vec::new();
        if bound {
            let free = asked(ir, node).into_iter().filter(|(_, ty)| ty.is_none());
            kernels = free.filter_map(|request| self.binding(request)).collect();
        }
        let weights = (0..node.weights.len()).map(|w| self.weight_use(source, run, at, w)).collect();
        let slots: Vec<&str> = node.weights.iter().map(|(slot, _)| slot.as_str()).collect();
        let word = node.op.word();
        Operation {
            op: word,
            title: if slots.is_empty() { word.to_owned() } else { format!("{word} {}", slots.join(" + ")) },
            family: family(node),
            line: ir.line(node),
            phase: source.phases.map(|phases| phases[n] - first_phase),
            lane: lane(node.lane),
            taken: source.step.is_none_or(|step| node.lane.meets(step.lane)),
            when: Vec::new(),
            inputs: read.iter().map(|id| port(ir, *id)).collect(),
            outputs: node.outputs.iter().map(|id| port(ir, *id)).collect(),
            before: before(ir, node),
            after: after(node),
            weights,
            kernels,
            cache: node.stream.map(|id| CacheUse {
                kind: stream_word(ir.streams[id.0].kind),
                writes: node.outputs.is_empty(),
                width: ir.streams[id.0].width,
            }),
            cost: source.step.map(|step| cost(ir, run, at, step)),
        }
    }

    fn weight_use(&mut self, source: &Source<'_>, run: &Run, at: usize, w: usize) -> WeightUse {
        let ir = source.ir;
        let mut formats: Vec<(TensorType, Vec<usize>, usize)> = Vec::new();
        for nodes in &run.nodes {
            let node = &ir.nodes[nodes[at]];
            let weight = ir.weight(node.weights[w].1);
            let layer = node.layer.into_iter();
            match formats.iter_mut().find(|(ty, ..)| *ty == weight.ty) {
                Some((_, layers, _)) => layers.extend(layer),
                None => formats.push((weight.ty, layer.collect(), weight.bytes())),
            }
        }
        let first = &ir.nodes[run.nodes[0][at]];
        let weight = ir.weight(first.weights[w].1);
        let mut tensor = weight.parts[0].tensor.clone();
        if let Some(layer) = weight.layer {
            tensor = tensor.replacen(&format!(".{layer}."), ".{layer}.", 1);
        }
        if weight.parts.len() > 1 {
            tensor = tensor.replacen("experts.0.", "experts.{expert}.", 1);
        }
        let card = WeightCard {
            slot: weight.slot.clone(),
            tensor,
            shape: weight.shape.clone(),
            formats: formats
                .iter()
                .map(|(ty, layers, bytes)| FormatCard {
                    format: ty.name(),
                    layers: list(layers),
                    count: layers.len().max(1),
                    bytes: *bytes,
                })
                .collect(),
        };
        let index = self.weights.iter().position(|other| *other == card).unwrap_or_else(|| {
            self.weights.push(card);
            self.weights.len() - 1
        });
        let mut kernels = Vec::new();
        if source.phases.is_some() {
            for (ty, ..) in &formats {
                let request = asked(ir, first).into_iter().filter(|(_, ty)| ty.is_some()).nth(w);
                kernels.extend(request.and_then(|(op, _)| self.binding((op, Some(*ty)))));
            }
        }
        WeightUse { weight: index, kernels }
    }

    /// The binding of one request, with what was asked and which other kernels there are.
    fn binding(&mut self, (op, ty): (OpKind, Option<TensorType>)) -> Option<usize> {
        if let Some(found) = self.requests.get(&(op, ty)) {
            return Some(*found);
        }
        let bind = &self.options.bind;
        let request = Request::new(self.kernels, (op, ty), bind);
        let chosen = request.best(self.kernels)?;
        let of_this = |k: &&KernelContract| k.op == op && k.weight.is_none_or(|w| Some(w) == ty);
        let others = self.kernels.iter().filter(of_this).filter(|k| k.name != chosen.name).map(|k| {
            let refusal = request.refusal(k);
            let matches = refusal.is_none();
            let why = refusal.unwrap_or_else(|| {
                if k.tier < chosen.tier {
                    format!("it matches, but {} is higher than {}", chosen.tier, k.tier)
                } else {
                    "it matches, but reads any format; the one bound is written for this one".to_owned()
                }
            });
            Other { kernel: k.name, why, matches }
        });
        let binding = Binding {
            operation: op.name(),
            format: ty.map(TensorType::name),
            kernel: chosen.name,
            tier: chosen.tier.name(),
            activation: request.activation.name(),
            layout: request.layout.map(base::Layout::name),
            why: request.why(chosen),
            others: others.collect(),
        };
        self.bindings.push(binding);
        self.requests.insert((op, ty), self.bindings.len() - 1);
        Some(self.bindings.len() - 1)
    }

    fn sketch(
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
            || matches!(node.op, Op::AttendLatent | Op::AttendSplit | Op::AttendExpanded)
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
        let mut streams: Vec<usize> = nodes.iter().filter_map(|n| ir.nodes[*n].stream.map(|s| s.0)).collect();
        streams.dedup();
        streams.sort_unstable();
        streams.dedup();
        for stream in streams {
            let s = &ir.streams[stream];
            let mut item = Item::new(Form::Cylinder, "cache", format!("{} cache", stream_word(s.kind)));
            item.lines.push(format!("{} × {}", s.width, self.options.bind.cache));
            item.lines.push(format!("{} B a token", s.width * self.options.bind.cache.bytes()));
            sketch.items.push(item);
            let cylinder = End::Item(sketch.items.len() - 1);
            for (at, n) in nodes.iter().enumerate() {
                let node = &ir.nodes[*n];
                if node.stream.is_none_or(|s| s.0 != stream) {
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
            if maker.outputs.contains(id) && maker.lane.meets(node.lane) {
                let later = nodes[from + 1..at]
                    .iter()
                    .any(|&k| ir.nodes[k].outputs.contains(id) && ir.nodes[k].lane == maker.lane);
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

fn weight_line(card: &WeightCard) -> String {
    let shape = match card.shape[..] {
        [width] => width.to_string(),
        [outputs, inputs] => format!("{inputs} → {outputs}"),
        _ => card.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" × "),
    };
    let formats: Vec<&str> = card.formats.iter().map(|f| f.format).collect();
    format!("{}  {shape}  {}", card.slot, formats.join("/"))
}

/// `q [128×192]`.
fn wire_label(ir: &Ir, id: ValueId) -> String {
    format!("{} {}", ir.value(id).name, shape(ir, id))
}

fn shape(ir: &Ir, id: ValueId) -> String {
    let value = ir.value(id);
    let mut parts = Vec::new();
    if let RowCount::Times(n) = value.rows {
        parts.push(n.to_string());
    }
    if value.heads > 1 {
        parts.push(value.heads.to_string());
    }
    parts.push(value.width.to_string());
    format!("[{}]", parts.join("×"))
}

fn port(ir: &Ir, id: ValueId) -> Port {
    let value = ir.value(id);
    let rows = match value.rows {
        RowCount::Rows => "rows".to_owned(),
        RowCount::Times(n) => format!("rows × {n}"),
    };
    let heads = if value.heads > 1 { format!(" × {}", value.heads) } else { String::new() };
    let place = match value.storage {
        Storage::Tokens => "the batch".to_owned(),
        Storage::Hidden => "residual stream".to_owned(),
        Storage::Logits => "logits".to_owned(),
        Storage::Own => "arena".to_owned(),
        Storage::View { of, offset: 0 } => match ir.value(ir.root(of)).storage {
            Storage::Hidden => "residual stream".to_owned(),
            _ => format!("in {}", ir.value(of).name),
        },
        Storage::View { of, offset } => format!("in {}, from {offset} of each head", ir.value(of).name),
    };
    Port { name: value.name.clone(), shape: format!("{rows}{heads} × {}", value.width), place }
}

pub(super) fn port_shape(ir: &Ir, id: ValueId) -> String {
    port(ir, id).shape
}

fn before(ir: &Ir, node: &Node) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(norm) = node.prologue.norm {
        words.push(format!("rms_norm {}", ir.weight(norm).slot));
    }
    if node.prologue.rope {
        let adds = usize::from(matches!(node.epilogue, Epilogue::AddTo(_)));
        let rotated = &node.inputs[node.inputs.len() - 1 - adds];
        words.push(format!("rope {}", ir.value(*rotated).name));
    }
    words
}

fn after(node: &Node) -> Vec<String> {
    match node.epilogue {
        Epilogue::None => Vec::new(),
        Epilogue::SiluMul => vec!["silu(gate) ⊙ up".into()],
        Epilogue::Relu2 => vec!["relu²".into()],
        Epilogue::AddTo(1.0) => vec!["+ residual".into()],
        Epilogue::AddTo(factor) => vec![format!("× {factor:.4} + residual")],
    }
}

fn lane(lane: Lane) -> Option<&'static str> {
    match lane {
        Lane::All => None,
        Lane::Absorbed => Some("absorbed"),
        Lane::Naive => Some("naive"),
    }
}

fn stream_word(kind: StreamKind) -> &'static str {
    match kind {
        StreamKind::Latent => "latent",
        StreamKind::Expanded => "expanded",
    }
}

fn family(node: &Node) -> &'static str {
    let slot = node.weights.first().map_or("", |(slot, _)| slot.as_str());
    family_of(node.op.word(), slot)
}

/// The colour of an operation.
pub(super) fn family_of(word: &str, slot: &str) -> &'static str {
    match word {
        "embed" | "gather_rows" => "io",
        "rms_norm" => "norm",
        "linear" | "mlp" if slot == "head" || slot == "embed" => "io",
        "linear" | "mlp" if slot == "router" || slot.starts_with("shared") => "experts",
        "rope" | "split" => "position",
        "mla_attention" | "absorb_k" | "absorb_v" | "attend_latent" | "attend_split" | "attend_expanded" => {
            "attention"
        }
        "latent_store" | "expanded_store" => "cache",
        "route" | "expert_mlp" | "expert_gate_up" | "expert_down" => "experts",
        "silu_mul" | "relu2" | "add" | "scale" => "sum",
        _ => "linear",
    }
}

/// Mean over the layers of a run. Costs are linear in the cached rows, so two points give them all.
fn cost(ir: &Ir, run: &Run, at: usize, step: Step) -> CostCard {
    const FAR: usize = 1024;
    let mut sum = CostCard::default();
    for nodes in &run.nodes {
        let node = &ir.nodes[nodes[at]];
        let near = node.cost(ir, Step { cached: 0, lane: node.lane, ..step });
        let far = node.cost(ir, Step { cached: FAR, lane: node.lane, ..step });
        sum.weight_bytes += near.weight_bytes;
        sum.cache_bytes += near.cache_bytes;
        sum.cache_bytes_per_cached += (far.cache_bytes - near.cache_bytes) / FAR as f64;
        sum.flops += near.flops;
        sum.flops_per_cached += (far.flops - near.flops) / FAR as f64;
    }
    let n = run.nodes.len() as f64;
    CostCard {
        weight_bytes: sum.weight_bytes / n,
        cache_bytes: sum.cache_bytes / n,
        cache_bytes_per_cached: sum.cache_bytes_per_cached / n,
        flops: sum.flops / n,
        flops_per_cached: sum.flops_per_cached / n,
    }
}
