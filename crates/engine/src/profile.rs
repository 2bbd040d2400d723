//! Where the time of a step goes: each phase beside what it moves and computes, and beside the machine's limits measured in the same run.

use crate::team::{Placement, Team};
use base::Tier;
use graph::Plan;
use graph::ir::{Cost, Node, Step};
use kernels::Peak;
use serde::Serialize;
use std::sync::Mutex;

/// What the machine can do with all threads of the run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Bytes a second from memory.
    pub read_bandwidth: f64,
    /// Multiply-adds of 8-bit integers a second.
    pub integer_macs: f64,
    /// Multiply-adds of f32 a second.
    pub float_macs: f64,
}

impl Limits {
    /// Measures them with threads that run where those of a model would.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn measure(placement: &Placement, tier: Tier) -> std::io::Result<Limits> {
        let mut team = Team::placed(placement)?;
        let peaks: Mutex<Vec<Peak>> = Mutex::default();
        // all at once: cores that are busy together may run slower than one alone
        team.run(&|_| {
            let peak = kernels::peak(tier);
            peaks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(peak);
        });
        let peaks = peaks.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(Limits {
            read_bandwidth: crate::read_bandwidth(placement)?,
            integer_macs: peaks.iter().map(|p| p.integers).sum(),
            float_macs: peaks.iter().map(|p| p.floats).sum(),
        })
    }
}

/// Phases of equal form in all layers that have them.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseProfile {
    /// First and last layer; none for what stands outside of layers.
    pub layers: Option<(usize, usize)>,
    /// How many phases.
    pub count: usize,
    /// What they do: the words of their operations.
    pub operations: Vec<String>,
    /// The kernels of their products and attention, each once.
    pub kernels: Vec<String>,
    /// Rows.
    pub rows: usize,
    /// Microseconds of one phase, on average.
    pub micros: f64,
    /// Share of the step's time that all of them take.
    pub share: f64,
    /// Bytes that one phase reads or writes: weights and cache.
    pub bytes: f64,
    /// Gigabytes a second.
    pub gb_per_s: f64,
    /// Billions of floating-point (or integer) operations a second.
    pub gflop_per_s: f64,
    /// `memory` or `arithmetic`: which limit binds.
    pub bound: &'static str,
    /// How near to that limit: the time that the limit allows ÷ the time taken.
    pub of_limit: f64,
}

/// The profile of steps of one size.
#[derive(Clone, Debug, Serialize)]
pub struct StepProfile {
    /// New rows of a step.
    pub rows: usize,
    /// Rows in the cache before.
    pub cached: usize,
    /// Steps measured.
    pub steps: usize,
    /// Milliseconds of a step.
    pub millis: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Barriers of a step.
    pub barriers: usize,
    /// Kernels called by one thread in a step.
    pub kernels: usize,
    /// Phases, in order.
    pub phases: Vec<PhaseProfile>,
}

/// Nanoseconds of each phase of a plan.
pub(crate) struct Timed<'p> {
    pub plan: &'p Plan,
    pub nanos: Vec<u64>,
    /// Rows that the plan worked on.
    pub rows: usize,
}

/// What a phase costs, arithmetic apart by kind.
#[derive(Clone, Copy, Default)]
struct PhaseCost {
    bytes: f64,
    integer: f64,
    float: f64,
}

/// Puts times and costs together. `step` is what the trunk did.
pub(crate) fn report(timed: &[Timed<'_>], step: Step, steps: usize, limits: &Limits) -> StepProfile {
    let total: u64 = timed.iter().flat_map(|t| &t.nanos).sum();
    let per_step = |nanos: f64| nanos / steps.max(1) as f64;
    let mut phases: Vec<(Vec<String>, PhaseProfile, PhaseCost)> = Vec::new();
    let (mut barriers, mut kernels) = (0, 0);
    for timed in timed {
        let step = Step { rows: timed.rows, ..step };
        for (phase, nanos) in timed.nanos.iter().enumerate() {
            let nodes = || {
                let all = timed.plan.ir.nodes.iter().zip(&timed.plan.phases);
                all.filter(|(node, at)| **at == phase && node.lane.meets(step.lane)).map(|(node, _)| node)
            };
            if nodes().next().is_none() || *nanos == 0 {
                continue;
            }
            barriers += 1;
            kernels += nodes().map(|node| node.kernels.len().max(1)).sum::<usize>();
            let mut cost = PhaseCost::default();
            nodes().for_each(|node| cost.add(node, node.cost(&timed.plan.ir, step)));
            let form = form(timed.plan, nodes());
            let layer = nodes().find_map(|node| node.layer);
            let micros = per_step(*nanos as f64) / 1e3;
            match phases.iter_mut().find(|(other, ..)| *other == form) {
                Some((_, profile, sum)) => {
                    profile.count += 1;
                    profile.micros += micros;
                    if let (Some((_, last)), Some(layer)) = (&mut profile.layers, layer) {
                        *last = layer;
                    }
                    sum.bytes += cost.bytes;
                    sum.integer += cost.integer;
                    sum.float += cost.float;
                }
                None => {
                    let profile = new_phase(nodes(), layer, timed.rows, micros);
                    phases.push((form, profile, cost));
                }
            }
        }
    }
    let millis = per_step(total as f64) / 1e6;
    let finished = phases.into_iter().map(|(_, profile, cost)| finish(profile, cost, millis, limits));
    StepProfile {
        rows: step.rows,
        cached: step.cached,
        steps,
        millis,
        tokens_per_s: step.rows as f64 * 1e3 / millis,
        barriers,
        kernels,
        phases: finished.collect(),
    }
}

impl PhaseCost {
    fn add(&mut self, node: &Node, cost: Cost) {
        self.bytes += cost.weight_bytes + cost.cache_bytes;
        if node.kernels.iter().any(|kernel| kernel.activation == "a8") {
            self.integer += cost.flops;
        } else {
            self.float += cost.flops;
        }
    }
}

/// What makes phases of different layers equal: operations, weight formats and kernels.
fn form<'n>(plan: &Plan, nodes: impl Iterator<Item = &'n Node>) -> Vec<String> {
    nodes
        .flat_map(|node| {
            let weights = node.weights.iter().map(|(slot, id)| {
                let weight = plan.ir.weight(*id);
                format!("{slot} {} {:?}", weight.ty, weight.shape)
            });
            let kernels = node.kernels.iter().map(|kernel| kernel.name.clone());
            std::iter::once(node.op.word().to_owned()).chain(weights).chain(kernels).collect::<Vec<_>>()
        })
        .collect()
}

fn new_phase<'n>(
    nodes: impl Iterator<Item = &'n Node>,
    layer: Option<usize>,
    rows: usize,
    micros: f64,
) -> PhaseProfile {
    let (mut operations, mut kernels) = (Vec::new(), Vec::new());
    for node in nodes {
        let slots: Vec<&str> = node.weights.iter().map(|(slot, _)| slot.as_str()).collect();
        let word = node.op.word();
        operations.push(if slots.is_empty() {
            word.to_owned()
        } else {
            format!("{word} {}", slots.join("+"))
        });
        for kernel in &node.kernels {
            if !kernels.contains(&kernel.name) {
                kernels.push(kernel.name.clone());
            }
        }
    }
    PhaseProfile {
        layers: layer.map(|layer| (layer, layer)),
        count: 1,
        operations,
        kernels,
        rows,
        micros,
        share: 0.0,
        bytes: 0.0,
        gb_per_s: 0.0,
        gflop_per_s: 0.0,
        bound: "memory",
        of_limit: 0.0,
    }
}

/// Averages over the phases of one form, and compares with the limits.
fn finish(mut profile: PhaseProfile, cost: PhaseCost, millis: f64, limits: &Limits) -> PhaseProfile {
    let seconds = profile.micros / 1e6;
    let memory = cost.bytes / limits.read_bandwidth;
    let arithmetic = cost.integer / (2.0 * limits.integer_macs) + cost.float / (2.0 * limits.float_macs);
    profile.share = profile.micros / (millis * 1e3);
    profile.bytes = cost.bytes / profile.count as f64;
    profile.gb_per_s = cost.bytes / seconds / 1e9;
    profile.gflop_per_s = (cost.integer + cost.float) / seconds / 1e9;
    profile.bound = if memory >= arithmetic { "memory" } else { "arithmetic" };
    profile.of_limit = memory.max(arithmetic) / seconds;
    profile.micros /= profile.count as f64;
    profile
}
