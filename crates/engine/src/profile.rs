//! Time per phase of a step, compared with the bytes it moves, the operations it computes, and the
//! machine's limits measured in the same run.

use crate::timeline::{PhaseIndex, ProfiledPhase, StepTimeline};
use latent_backend::{BackendModel, PeakRates, PlanTimes, ProfileClock, RankTimes};
use latent_graph::Plan;
use latent_graph::ir::{Node, NodeCost, StepWorkload};
use latent_graph::passes::BatchBucket;
use latent_types::Arithmetic;
use serde::Serialize;

/// Phases of equal form in all layers that have them.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseProfile {
    /// First and last layer; none for what stands outside of layers.
    pub layers: Option<(usize, usize)>,
    /// How many phases.
    pub count: usize,
    /// What they do: the words of their operations.
    pub operations: Vec<String>,
    /// Microseconds that the first thread spends in each operation of one phase, on average; empty where the backend does not know them. What is left
    /// of `micros` it waits for the other threads.
    pub operation_micros: Vec<f64>,
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
    /// The least microseconds that arithmetic allows for one phase.
    pub arithmetic_micros: f64,
    /// Columns per row of the widest result of its products; 0 without products.
    pub product_columns: usize,
}

/// The size of a step: `sequences` sequences with `rows` new rows each, after `cached` ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Sequences.
    pub sequences: usize,
    /// New rows of each.
    pub rows: usize,
    /// Rows in the cache of each before.
    pub cached: usize,
    /// Rows whose logits are wanted, of all sequences.
    pub wanted: usize,
    /// Whether it is a step of the MTP layer, over rows that the model has run.
    pub mtp: bool,
}

impl StepSize {
    /// One token for each of some sequences, and its logits.
    pub fn decode(sequences: usize, cached: usize) -> StepSize {
        StepSize { sequences, rows: 1, cached, wanted: sequences, mtp: false }
    }

    /// A token and its draft for each of some sequences, and the logits of both.
    pub fn verify(sequences: usize, cached: usize) -> StepSize {
        StepSize { rows: 2, wanted: sequences.saturating_mul(2), ..StepSize::decode(sequences, cached) }
    }

    /// A draft for each of some sequences.
    pub fn draft(sequences: usize, cached: usize) -> StepSize {
        StepSize { mtp: true, ..StepSize::decode(sequences, cached) }
    }

    /// The steps of a prompt that is read in chunks, with the logits of its last row.
    pub fn prompt(rows: usize, cached: usize, chunk: usize) -> impl Iterator<Item = StepSize> {
        let chunk = chunk.max(1);
        let step = move |first: usize| StepSize {
            sequences: 1,
            rows: chunk.min(rows - first),
            cached: cached.saturating_add(first),
            wanted: usize::from(chunk >= rows - first),
            mtp: false,
        };
        (0..rows).step_by(chunk).map(step)
    }
}

/// The least time that the machine's limits allow: in every step the longer of reading its bytes and of its arithmetic.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Roofline {
    /// Seconds of all steps.
    pub seconds: f64,
    /// Bytes of weights and cache that they read or write.
    pub bytes: f64,
    /// Seconds of `seconds` that are of steps bound by memory.
    pub memory_seconds: f64,
}

impl Roofline {
    /// `memory` or `arithmetic`: which limit binds for the larger part of the time.
    pub fn bound(&self) -> &'static str {
        if self.memory_seconds * 2.0 >= self.seconds { "memory" } else { "arithmetic" }
    }

    /// Adds a step of a model, given by the plans that it runs, each with its place among all plans of all stages.
    pub(crate) fn add<'p>(
        &mut self,
        plans: impl Iterator<Item = (usize, &'p Plan, StepWorkload)>,
        model: &dyn BackendModel,
        limits: &PeakRates,
    ) {
        let mut cost = PhaseCost::default();
        for (place, plan, step) in plans {
            for (at, node) in plan.ir.nodes.iter().enumerate() {
                cost.add(arithmetic(model, place, at, step), node.cost(&plan.ir, step));
            }
        }
        let (memory, arithmetic) = cost.seconds(limits);
        self.seconds += memory.max(arithmetic);
        self.bytes += cost.bytes;
        if memory >= arithmetic {
            self.memory_seconds += memory;
        }
    }
}

/// The profile of steps: the average of repeated ones, or all the steps of a prompt together.
#[derive(Clone, Debug, Serialize)]
pub struct StepProfile {
    /// Sequences of a step.
    pub sequences: usize,
    /// New rows, of all sequences.
    pub rows: usize,
    /// Rows in the cache before, of each sequence.
    pub cached: usize,
    /// Whether they are steps of the MTP layer alone.
    pub mtp: bool,
    /// Steps measured.
    pub steps: usize,
    /// What took the times.
    pub clock: ProfileClock,
    /// Milliseconds of those rows.
    pub millis: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// Barriers of a step.
    pub barriers: usize,
    /// Kernels called by one thread in a step.
    pub kernels: usize,
    /// Phases, in order.
    pub phases: Vec<PhaseProfile>,
    /// When each thread began and ended the phases of one of the steps.
    pub timeline: StepTimeline,
    /// The other ranks that share the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankProfile>,
}

/// Where the time of another rank goes, in milliseconds of those rows.
#[derive(Clone, Debug, Serialize)]
pub struct RankProfile {
    /// The rank.
    pub rank: usize,
    /// Where it runs.
    pub host: String,
    /// All of its phases.
    pub millis: f64,
    /// Between its steps, waiting for the next one.
    pub idle_millis: f64,
    /// What its first thread waited of that for other ranks, and for their messages to be taken in.
    pub collective_millis: f64,
    /// Its first thread in the operations of each kind, the longest first; the rest of its time it waited for other threads.
    pub operations: Vec<(String, f64)>,
}

impl StepProfile {
    /// What was measured, and how long it took.
    pub fn title(&self) -> String {
        let StepProfile { sequences, rows, cached, mtp, steps, millis, .. } = self;
        match (rows, steps) {
            _ if *mtp => format!("a draft by the MTP layer after {cached} tokens: {millis:.2} ms"),
            (2, 2..) if *sequences == 1 => {
                format!("a token and its draft after {cached} tokens: {millis:.2} ms per step")
            }
            _ if *sequences > 1 => {
                format!("{sequences} sequences after {cached} tokens: {millis:.2} ms per step")
            }
            (1, _) => format!("decode after {cached} tokens: {millis:.2} ms per step"),
            (rows, 1) => format!("prompt of {rows} after {cached} tokens: {millis:.2} ms"),
            (rows, steps) => {
                format!("prompt of {rows} in {steps} steps after {cached} tokens: {millis:.2} ms")
            }
        }
    }
}

impl RankProfile {
    /// Of times, `share` of which counts.
    pub(crate) fn new(times: RankTimes, share: f64) -> RankProfile {
        let millis = |nanos: u64| share * nanos as f64 / 1e6;
        let collective = |word: &str| ["all_reduce", "send_rows", "receive_rows"].contains(&word);
        let waited =
            times.operations.iter().filter(|(word, _)| collective(word)).map(|(_, nanos)| *nanos).sum();
        RankProfile {
            rank: times.rank,
            host: times.host,
            millis: millis(times.nanos),
            idle_millis: millis(times.idle),
            collective_millis: millis(waited),
            operations: times.operations.into_iter().map(|(word, nanos)| (word, millis(nanos))).collect(),
        }
    }
}

/// Times of a plan, summed over the steps that it ran.
pub(crate) struct TimedPlan<'p> {
    /// Its place among all plans of all stages.
    pub place: usize,
    pub plan: &'p Plan,
    pub times: PlanTimes,
    pub steps: Vec<StepWorkload>,
    /// What its device can do.
    pub limits: PeakRates,
}

/// What a phase costs.
#[derive(Clone, Copy, Default)]
struct PhaseCost {
    bytes: f64,
    /// Multiplications and additions of each kind of [`Arithmetic`].
    flops: [f64; Arithmetic::ALL.len()],
}

/// What a node of the plan at this place multiplies in.
fn arithmetic(model: &dyn BackendModel, place: usize, node: usize, step: StepWorkload) -> Arithmetic {
    let plan = (place / BatchBucket::ALL.len(), place % BatchBucket::ALL.len());
    model.arithmetic(plan, node, step.rows)
}

/// Puts times and costs of a model together, without a timeline. Also returns where the phases of its plans are in the profile.
pub(crate) fn report(
    model: &dyn BackendModel,
    timed: &[TimedPlan<'_>],
    sizes: &[StepSize],
    repeated: bool,
) -> (StepProfile, PhaseIndex) {
    // plans of other steps that `work` also ran do not count
    let total: u64 = timed.iter().filter(|t| !t.steps.is_empty()).flat_map(|t| &t.times.phases).sum();
    // of repeated steps, the average
    let share = if repeated { 1.0 / sizes.len().max(1) as f64 } else { 1.0 };
    let mut phases: Vec<(Vec<String>, PhaseProfile, PhaseCost, &PeakRates)> = Vec::new();
    let mut index = PhaseIndex::new();
    let (mut barriers, mut kernels) = (0, 0);
    for timed in timed {
        for (phase, nanos) in timed.times.phases.iter().enumerate() {
            let numbered = || {
                let all = timed.plan.ir.nodes.iter().enumerate().zip(&timed.plan.phases);
                let here = all.filter(|(_, at)| **at == phase).map(|(node, _)| node);
                here.filter(|(_, node)| timed.steps.iter().any(|step| node.path.meets(step.path)))
            };
            let nodes = || numbered().map(|(_, node)| node);
            if nodes().next().is_none() || *nanos == 0 {
                continue;
            }
            barriers += timed.steps.len();
            kernels += timed.steps.len() * nodes().map(|node| node.kernels.len().max(1)).sum::<usize>();
            let mut cost = PhaseCost::default();
            for step in &timed.steps {
                for (at, node) in numbered() {
                    let kind = arithmetic(model, timed.place, at, *step);
                    cost.add(kind, node.cost(&timed.plan.ir, *step));
                }
            }
            cost = cost.times(share);
            let form = form(timed.plan, nodes());
            let layer = nodes().find_map(|node| node.layer);
            let micros = share * *nanos as f64 / 1e3;
            let of_node = |at: usize| timed.times.nodes.get(at).map(|nanos| share * *nanos as f64 / 1e3);
            let own: Vec<f64> = numbered().filter_map(|(at, _)| of_node(at)).collect();
            let known = phases.iter().position(|(other, ..)| *other == form);
            let nodes_here = numbered().map(|(at, _)| at).collect();
            let here = ProfiledPhase { index: known.unwrap_or(phases.len()), layer, nodes: nodes_here };
            index.insert((timed.place, phase), here);
            match known.map(|known| &mut phases[known]) {
                Some((_, profile, sum, _)) => {
                    profile.count += 1;
                    profile.micros += micros;
                    profile.operation_micros.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
                    if let (Some((_, last)), Some(layer)) = (&mut profile.layers, layer) {
                        *last = layer.max(*last);
                    }
                    sum.bytes += cost.bytes;
                    sum.flops.iter_mut().zip(cost.flops).for_each(|(sum, flops)| *sum += flops);
                }
                None => {
                    let rows = timed.steps.iter().map(|step| step.rows).max().unwrap_or(0);
                    let profile = PhaseProfile {
                        operation_micros: own,
                        ..new_phase(timed.plan, nodes(), layer, rows, micros)
                    };
                    phases.push((form, profile, cost, &timed.limits));
                }
            }
        }
    }
    let millis = share * total as f64 / 1e6;
    let finished = phases.into_iter().map(|(_, profile, cost, limits)| finish(profile, cost, millis, limits));
    let mtp = !sizes.is_empty() && sizes.iter().all(|size| size.mtp);
    // the rows of the MTP layer are the same tokens as the model's: count them once
    let counted = sizes.iter().filter(|size| size.mtp == mtp);
    let rows: usize = counted.map(|size| size.sequences * size.rows).sum();
    let steps = sizes.len().max(1);
    let profile = StepProfile {
        sequences: sizes.first().map_or(0, |size| size.sequences),
        rows: if repeated { rows / steps } else { rows },
        cached: sizes.first().map_or(0, |size| size.cached),
        mtp,
        steps: sizes.len(),
        clock: model.profile_clock(),
        millis,
        tokens_per_s: rows as f64 * share * 1e3 / millis,
        barriers: barriers / steps,
        kernels: kernels / steps,
        phases: finished.collect(),
        timeline: StepTimeline { title: String::new(), measured: false, slices: Vec::new() },
        ranks: Vec::new(),
    };
    (profile, index)
}

impl PhaseCost {
    fn add(&mut self, arithmetic: Arithmetic, cost: NodeCost) {
        self.bytes += cost.weight_bytes + cost.cache_bytes;
        self.flops[arithmetic as usize] += cost.flops;
    }

    fn times(self, factor: f64) -> PhaseCost {
        PhaseCost { bytes: self.bytes * factor, flops: self.flops.map(|flops| flops * factor) }
    }

    /// The least seconds of reading, and of arithmetic.
    fn seconds(&self, limits: &PeakRates) -> (f64, f64) {
        let all = Arithmetic::ALL.into_iter().zip(self.flops).filter(|(_, flops)| *flops > 0.0);
        let arithmetic: f64 = all.map(|(kind, flops)| flops / limits.macs(kind)).sum();
        (self.bytes / limits.read_bandwidth, arithmetic / 2.0)
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
    plan: &Plan,
    nodes: impl Iterator<Item = &'n Node>,
    layer: Option<usize>,
    rows: usize,
    micros: f64,
) -> PhaseProfile {
    let (mut operations, mut kernels) = (Vec::new(), Vec::new());
    let mut product_columns = 0;
    for node in nodes {
        if !node.weights.is_empty() && !node.kernels.is_empty() {
            let widths = node.outputs.iter().map(|id| plan.ir.value(*id).row_width());
            product_columns = widths.fold(product_columns, usize::max);
        }
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
        operation_micros: Vec::new(),
        kernels,
        rows,
        micros,
        share: 0.0,
        bytes: 0.0,
        gb_per_s: 0.0,
        gflop_per_s: 0.0,
        bound: "memory",
        of_limit: 0.0,
        arithmetic_micros: 0.0,
        product_columns,
    }
}

/// Averages over the phases of one form, and compares with the limits.
fn finish(mut profile: PhaseProfile, cost: PhaseCost, millis: f64, limits: &PeakRates) -> PhaseProfile {
    let seconds = profile.micros / 1e6;
    let (memory, arithmetic) = cost.seconds(limits);
    profile.share = profile.micros / (millis * 1e3);
    profile.bytes = cost.bytes / profile.count as f64;
    profile.gb_per_s = cost.bytes / seconds / 1e9;
    profile.gflop_per_s = cost.flops.iter().sum::<f64>() / seconds / 1e9;
    profile.bound = if memory >= arithmetic { "memory" } else { "arithmetic" };
    profile.of_limit = memory.max(arithmetic) / seconds;
    let count = profile.count as f64;
    profile.arithmetic_micros = arithmetic * 1e6 / count;
    profile.micros /= count;
    profile.operation_micros.iter_mut().for_each(|micros| *micros /= count);
    profile
}
