//! Memory and work of parts of a model, per step and per prompt.

use super::routing::StepRouting;
use latent_graph::config::{ModelConfig, WireType};
use latent_graph::ir::{AttentionPath, Ir, Node, Op, StepWorkload};
use latent_graph::passes::MlaChoice;
use latent_graph::stage_index::{LAYERS, LM_HEAD};
use latent_graph::{Plan, Stage, distinct_weights};
use latent_types::CacheType;
use std::ops::AddAssign;

/// The workload of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictionCase {
    /// Tokens of context per sequence, which must fit into memory.
    pub context: usize,
    /// Tokens of context that a step attends to.
    pub past: usize,
    /// Sequences of a step.
    pub rows: usize,
    /// Steps in flight, each of other sequences.
    pub in_flight: usize,
    /// Length of the prompt whose time to the first token is predicted.
    pub prompt: usize,
    /// Tokens per chunk of the prompt.
    pub chunk: usize,
    /// Type of residual rows in messages.
    pub wire: WireType,
}

impl PredictionCase {
    /// Tokens in the KV cache of all sequences.
    pub(super) fn cached_tokens(&self) -> usize {
        self.context.saturating_mul(self.rows).saturating_mul(self.in_flight)
    }
}

/// The work of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Bytes of weights and cache.
    pub bytes: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Number of sums over the ranks that share a layer.
    pub sums: f64,
    /// Bytes of the rows of these sums.
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

/// Memory and work of a part of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartLoad {
    /// Bytes of weights.
    pub stored: f64,
    /// Bytes per token in the KV cache.
    pub cached: f64,
    /// A step with one token per sequence.
    pub step: StepWork,
    /// All chunks of the prompt.
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
    /// Bytes of weights and of the KV cache of all sequences.
    pub(super) fn memory(&self, case: &PredictionCase) -> f64 {
        self.stored + self.cached * case.cached_tokens() as f64
    }
}

/// The load of each layer, and of embedding, final norm and `lm_head`.
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

    /// Counts the load from the plans of a rank or of the whole model.
    pub(super) fn of_stages(
        stages: &[Stage],
        config: &ModelConfig,
        (mla, cache): (MlaChoice, CacheType),
        case: &PredictionCase,
    ) -> ModelLoads {
        let mut loads = ModelLoads::default();
        let count = CountOptions { routing: StepRouting::of(config), wire: case.wire };
        let path = |rows| mla.path(rows, &config.attention);
        // Plans of several batch buckets use the same weights.
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
            // Only the last row of a prompt needs logits.
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

/// How the cost of nodes is counted.
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
                // `link_bytes` is counted in f32.
                let summed = cost.link_bytes * wire.bytes() as f64 / 4.0;
                return StepWork { sums: 1.0, summed, ..StepWork::default() };
            }
            Op::ExpertMlp | Op::ExpertGateUp | Op::ExpertDown if !routing.is_whole() => {
                // The node's own cost assumes that work is shared evenly. The ranks wait for the
                // busiest one.
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
