//! Memory and work of parts of a model, per step and per prompt.

use super::routing::StepRouting;
use latent_graph::config::{ModelConfig, WireType};
use latent_graph::ir::{AttentionPath, Ir, Node, Op, StepWorkload};
use latent_graph::passes::MlaChoice;
use latent_graph::stage_index::{LAYERS, LM_HEAD};
use latent_graph::{Plan, Stage, distinct_weights};
use latent_types::CacheType;
use std::ops::AddAssign;

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictionCase {
    /// Tokens of context of each sequence, for which there must be memory.
    pub context: usize,
    /// Tokens of them to which a step attends.
    pub past: usize,
    /// Sequences of a step.
    pub rows: usize,
    /// Steps in flight, each of other sequences.
    pub in_flight: usize,
    /// Tokens of the prompt whose first token is predicted.
    pub prompt: usize,
    /// Tokens of a step of it.
    pub chunk: usize,
    /// What crosses between ranks.
    pub wire: WireType,
}

impl PredictionCase {
    /// Tokens in the KV cache, of all sequences.
    pub(super) fn cached_tokens(&self) -> usize {
        self.context.saturating_mul(self.rows).saturating_mul(self.in_flight)
    }
}

/// What steps move and compute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Bytes of weights and cache.
    pub bytes: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Sums over the ranks that share a layer.
    pub sums: f64,
    /// Bytes of the rows that they add up.
    pub summed: f64,
}

impl AddAssign for StepWork {
    fn add_assign(&mut self, other: StepWork) {
        self.bytes += other.bytes;
        self.flops += other.flops;
        self.sums += other.sums;
        self.summed += other.summed;
    }
}

/// What a part of a model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartLoad {
    /// Bytes of its weights.
    pub stored: f64,
    /// Bytes of a token in the KV cache.
    pub cached: f64,
    /// A step of one token for each sequence.
    pub step: StepWork,
    pub prompt: StepWork,
}

impl AddAssign for PartLoad {
    fn add_assign(&mut self, other: PartLoad) {
        self.stored += other.stored;
        self.cached += other.cached;
        self.step += other.step;
        self.prompt += other.prompt;
    }
}

impl PartLoad {
    /// Bytes of weights, and of the caches of all sequences.
    pub(super) fn memory(&self, case: &PredictionCase) -> f64 {
        self.stored + self.cached * case.cached_tokens() as f64
    }
}

/// The load of each layer, and of what is around them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ModelLoads {
    pub(super) layers: Vec<PartLoad>,
    pub(super) around: PartLoad,
}

impl ModelLoads {
    fn at(&mut self, layer: Option<usize>) -> &mut PartLoad {
        let Some(layer) = layer else { return &mut self.around };
        self.layers.resize(self.layers.len().max(layer + 1), PartLoad::default());
        &mut self.layers[layer]
    }

    /// From the plans of a rank, or of the whole model.
    pub(super) fn of_stages(
        stages: &[Stage],
        config: &ModelConfig,
        (mla, cache): (MlaChoice, CacheType),
        case: &PredictionCase,
    ) -> ModelLoads {
        let mut loads = ModelLoads::default();
        let count = CountOptions { routing: StepRouting::of(config), wire: case.wire };
        let path = |rows| mla.path(rows, &config.attention);
        for weight in distinct_weights(stages) {
            loads.at(weight.layer).stored += weight.bytes() as f64;
        }
        let step = |rows, sequences, past_len, path: AttentionPath| StepWorkload {
            rows,
            sequences,
            past_len,
            cache,
            path,
        };
        if let Some(stage) = stages.get(LAYERS) {
            for layer in stage.kv_layers() {
                loads.at(Some(layer.layer)).cached += layer.row(cache).bytes() as f64;
            }
            let decode = step(case.rows, case.rows, case.past, path(1));
            loads.add(stage.plan(case.rows), decode, &count, |load| &mut load.step);
            for first in (0..case.prompt).step_by(case.chunk.max(1)) {
                let rows = case.chunk.min(case.prompt - first);
                let chunk = step(rows, 1, first, path(rows));
                loads.add(stage.plan(rows), chunk, &count, |load| &mut load.prompt);
            }
        }
        if let Some(stage) = stages.get(LM_HEAD) {
            let head = |rows| step(rows, rows, 0, path(1));
            loads.add(stage.plan(case.rows), head(case.rows), &count, |load| &mut load.step);
            loads.add(stage.plan(1), head(1), &count, |load| &mut load.prompt);
        }
        loads
    }

    fn add(
        &mut self,
        plan: &Plan,
        step: StepWorkload,
        count: &CountOptions,
        of: impl Fn(&mut PartLoad) -> &mut StepWork,
    ) {
        for node in &plan.ir.nodes {
            *of(self.at(node.layer)) += count.work(node, &plan.ir, step);
        }
    }
}

/// How nodes are counted.
struct CountOptions {
    routing: StepRouting,
    wire: WireType,
}

impl CountOptions {
    fn work(&self, node: &Node, ir: &Ir, step: StepWorkload) -> StepWork {
        let CountOptions { routing, wire } = self;
        let cost = node.cost(ir, step);
        let (mut bytes, mut flops) = (cost.weight_bytes + cost.cache_bytes, cost.flops);
        match node.op {
            Op::AllReduce => {
                // counted in f32
                let summed = cost.link_bytes * wire.bytes() as f64 / 4.0;
                return StepWork { sums: 1.0, summed, ..StepWork::default() };
            }
            Op::ExpertMlp | Op::ExpertGateUp | Op::ExpertDown if !routing.is_whole() => {
                let busiest = routing.busiest(step.rows);
                let weights = node.weights.iter().map(|(_, id)| ir.weight(*id));
                let expert: f64 =
                    weights.map(|weight| weight.bytes() as f64 / weight.matrices() as f64).sum();
                bytes = busiest.experts * expert;
                flops *= busiest.of_rows;
            }
            _ => {}
        }
        StepWork { bytes, flops, ..StepWork::default() }
    }
}
