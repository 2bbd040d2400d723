//! From an IR, or a plan, to blocks: operations with all that is known of them, and the sketch that is drawn.

use super::data::{Binding, Block, CacheUse, CostCard, FormatCard, Operation, Other, WeightCard, WeightUse};
use super::fold::{Place, Run, list, runs, spans};
use super::words::{after, before, family, lane, port, stream_word};
use super::{Options, paint};
use crate::config::{LayerKind, ModelConfig};
use crate::ir::{Epilogue, Ir, Node, Step};
use crate::passes::{BatchBucket, Request, binding_bucket, required_kernels};
use latent_types::{KernelContract, OpKind, TensorType};
use std::collections::HashMap;

/// What all views of a drawing share.
pub(super) struct Shared<'a> {
    pub(super) config: &'a ModelConfig,
    pub(super) kernels: &'a [KernelContract],
    pub(super) options: &'a Options,
    pub(super) weights: Vec<WeightCard>,
    pub(super) bindings: Vec<Binding>,
    requests: HashMap<(OpKind, Option<TensorType>, BatchBucket), usize>,
    pub(super) blocks: Vec<Block>,
}

/// What one view draws.
pub(super) struct Source<'a> {
    pub(super) ir: &'a Ir,
    /// Phases, where it is a plan.
    pub(super) phases: Option<&'a [usize]>,
    /// The step that costs are counted for, where it is a plan.
    pub(super) step: Option<Step>,
    /// The class of rows, where it is a plan.
    pub(super) class: Option<BatchBucket>,
}

impl Source<'_> {
    /// The class of rows that a node's kernels are bound for, where it is a plan.
    fn class_of(&self, node: &Node) -> Option<BatchBucket> {
        self.class.map(|class| binding_bucket(&node.op, class))
    }
}

impl<'a> Shared<'a> {
    pub(super) fn new(
        config: &'a ModelConfig,
        kernels: &'a [KernelContract],
        options: &'a Options,
    ) -> Shared<'a> {
        Shared {
            config,
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
                let about = match self.config.layer_kinds[layers[0]] {
                    LayerKind::Dense => "attention, then a dense feed-forward block".to_owned(),
                    LayerKind::Moe => {
                        let moe = self.config.moe.map_or((0, 0), |m| (m.num_experts_per_tok, m.experts));
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
        let mut kernels = Vec::new();
        if let Some(class) = source.class_of(node) {
            let free = required_kernels(ir, node).into_iter().filter(|(_, ty)| ty.is_none());
            kernels = free.filter_map(|request| self.binding(request, class)).collect();
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
            lane: lane(node.path),
            taken: source.step.is_none_or(|step| node.path.meets(step.path)),
            when: Vec::new(),
            inputs: read.iter().map(|id| port(ir, *id)).collect(),
            outputs: node.outputs.iter().map(|id| port(ir, *id)).collect(),
            before: before(ir, node),
            after: after(node),
            weights,
            kernels,
            cache: node.kv_layer.map(|id| CacheUse {
                kind: stream_word(ir.kv_layers[id.0].kind),
                writes: node.outputs.is_empty(),
                width: ir.kv_layers[id.0].width,
                row_bytes: ir.kv_layers[id.0].row(self.options.bind.cache).bytes(),
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
        if let Some(class) = source.class_of(first) {
            for (ty, ..) in &formats {
                let request = required_kernels(ir, first).into_iter().filter(|(_, ty)| ty.is_some()).nth(w);
                kernels.extend(request.and_then(|(op, _)| self.binding((op, Some(*ty)), class)));
            }
        }
        WeightUse { weight: index, kernels }
    }

    /// The binding of one request, with what was asked and which other kernels there are.
    fn binding(&mut self, (op, ty): (OpKind, Option<TensorType>), class: BatchBucket) -> Option<usize> {
        if let Some(found) = self.requests.get(&(op, ty, class)) {
            return Some(*found);
        }
        let bind = &self.options.bind;
        let request = Request::new(self.kernels, (op, ty), bind, class);
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
            layout: request.layout.map(latent_types::WeightLayout::name),
            why: request.why(chosen),
            others: others.collect(),
        };
        self.bindings.push(binding);
        self.requests.insert((op, ty, class), self.bindings.len() - 1);
        Some(self.bindings.len() - 1)
    }
}

/// Mean over the layers of a run. Costs are linear in the cached rows, so two points give them all.
fn cost(ir: &Ir, run: &Run, at: usize, step: Step) -> CostCard {
    const FAR: usize = 1024;
    let mut sum = CostCard::default();
    for nodes in &run.nodes {
        let node = &ir.nodes[nodes[at]];
        let near = node.cost(ir, Step { past_len: 0, path: node.path, ..step });
        let far = node.cost(ir, Step { past_len: FAR, path: node.path, ..step });
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
