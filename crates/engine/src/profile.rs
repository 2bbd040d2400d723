//! Profiles: the time per phase of a step, compared with the bytes that it moves, the operations
//! that it computes, and the machine's limits, which are measured in the same run.

use crate::timeline::{PhaseIndex, ProfiledPhase, StepTimeline};
use latent_backend::{BackendModel, PeakRates, PlanTimes, ProfileClock, RankTimes};
use latent_graph::Plan;
use latent_graph::ir::{Node, NodeCost, StepWorkload};
use latent_graph::passes::BatchBucket;
use latent_types::Arithmetic;
use serde::Serialize;

/// Phases with the same operations, weight formats and kernels, over all layers.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseProfile {
    /// First and last layer. `None` for phases outside of layers.
    pub layers: Option<(usize, usize)>,
    /// Number of phases.
    pub count: usize,
    /// The names of the operations.
    pub operations: Vec<String>,
    /// Average time of the first thread in each operation of one phase, in microseconds. Empty if
    /// the backend does not measure it. The rest of `micros` is waiting for other threads.
    pub operation_micros: Vec<f64>,
    /// The kernels of products and attention, without duplicates.
    pub kernels: Vec<String>,
    /// Number of rows.
    pub rows: usize,
    /// Average time of one phase, in microseconds.
    pub micros: f64,
    /// Fraction of the step's time that all phases take.
    pub share: f64,
    /// Bytes of weights and cache that one phase reads or writes.
    pub bytes: f64,
    /// Gigabytes per second.
    pub gb_per_s: f64,
    /// Billions of floating-point (or integer) operations per second.
    pub gflop_per_s: f64,
    /// The binding limit: `memory` or `arithmetic`.
    pub bound: &'static str,
    /// Fraction of that limit that is reached: minimum time ÷ measured time.
    pub of_limit: f64,
    /// Minimum time for the arithmetic of one phase, in microseconds.
    pub arithmetic_micros: f64,
    /// Columns per row of the widest result of products. 0 without products.
    pub product_columns: usize,
}

/// The size of a step: `sequences` sequences with `rows` new rows each, after `cached` ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Number of sequences.
    pub sequences: usize,
    /// New rows per sequence.
    pub rows: usize,
    /// Cached rows per sequence.
    pub cached: usize,
    /// Total number of rows whose logits are needed.
    pub wanted: usize,
    /// Whether it is a step of the MTP layer, over rows that the model has run.
    pub mtp: bool,
}

impl StepSize {
    /// One token per sequence, with its logits.
    pub fn decode(sequences: usize, cached: usize) -> StepSize {
        StepSize { sequences, rows: 1, cached, wanted: sequences, mtp: false }
    }

    /// A token and its draft per sequence, with the logits of both.
    pub fn verify(sequences: usize, cached: usize) -> StepSize {
        StepSize { rows: 2, wanted: sequences.saturating_mul(2), ..StepSize::decode(sequences, cached) }
    }

    /// One draft per sequence, by the MTP layer.
    pub fn draft(sequences: usize, cached: usize) -> StepSize {
        StepSize { mtp: true, ..StepSize::decode(sequences, cached) }
    }

    /// The steps of a prompt that runs in chunks, with the logits of its last row.
    pub fn prompt(rows: usize, cached: usize, chunk: usize) -> impl Iterator<Item = StepSize> {
        let chunk = chunk.max(1);
        let step = move |first: usize| StepSize {
            sequences: 1,
            rows: chunk.min(rows - first),
            cached: cached.saturating_add(first),
            // Only the last chunk has the row whose logits are needed.
            wanted: usize::from(chunk >= rows - first),
            mtp: false,
        };
        (0..rows).step_by(chunk).map(step)
    }
}

/// The minimum time that the machine's limits allow: for every step, the larger of the times for
/// reading its bytes and for its arithmetic.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Roofline {
    /// Minimum time of all steps, in seconds.
    pub seconds: f64,
    /// Bytes of weights and cache that the steps read or write.
    pub bytes: f64,
    /// The part of `seconds` in steps bound by memory.
    pub memory_seconds: f64,
}

impl Roofline {
    /// The limit that binds for the larger part of the time: `memory` or `arithmetic`.
    pub fn bound(&self) -> &'static str {
        if self.memory_seconds * 2.0 >= self.seconds { "memory" } else { "arithmetic" }
    }

    /// Adds a step of a model, given by the plans that it runs. Each plan has its index among all
    /// plans of all stages.
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
        // Reads and arithmetic of a step can overlap, so the slower of both is the limit.
        self.seconds += memory.max(arithmetic);
        self.bytes += cost.bytes;
        if memory >= arithmetic {
            self.memory_seconds += memory;
        }
    }
}

/// The profile of steps: the average of repeated steps, or the sum of all steps of a prompt.
#[derive(Clone, Debug, Serialize)]
pub struct StepProfile {
    /// Sequences per step.
    pub sequences: usize,
    /// New rows of all sequences.
    pub rows: usize,
    /// Cached rows per sequence.
    pub cached: usize,
    /// Whether all steps are of the MTP layer.
    pub mtp: bool,
    /// Number of measured steps.
    pub steps: usize,
    /// The clock that measured the times.
    pub clock: ProfileClock,
    /// Time of the rows, in milliseconds.
    pub millis: f64,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// Barriers per step.
    pub barriers: usize,
    /// Kernels that one thread calls per step.
    pub kernels: usize,
    /// The phases, in order.
    pub phases: Vec<PhaseProfile>,
    /// The timeline of one of the steps, by thread and phase.
    pub timeline: StepTimeline,
    /// The other ranks that share the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankProfile>,
}

/// The times of another rank for the same rows, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct RankProfile {
    /// Index of the rank.
    pub rank: usize,
    /// Name of its host.
    pub host: String,
    /// Time of all phases.
    pub millis: f64,
    /// Time between steps, waiting for the next one.
    pub idle_millis: f64,
    /// The part of `millis` that the first thread spent in collectives: waiting for other ranks,
    /// and receiving their messages.
    pub collective_millis: f64,
    /// Time of the first thread in operations of each kind, the longest first. The rest is waiting
    /// for other threads.
    pub operations: Vec<(String, f64)>,
}

impl StepProfile {
    /// A title with the measured steps and their time.
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
    /// The profile from the times of a rank, multiplied by `share`.
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

/// The times of a plan, summed over the steps that ran it.
pub(crate) struct TimedPlan<'p> {
    /// Index of the plan among all plans of all stages.
    pub place: usize,
    pub plan: &'p Plan,
    pub times: PlanTimes,
    pub steps: Vec<StepWorkload>,
    /// The peak rates of the plan's device.
    pub limits: PeakRates,
}

/// The cost of a phase.
#[derive(Clone, Copy, Default)]
struct PhaseCost {
    bytes: f64,
    /// Multiplications and additions of each kind of [`Arithmetic`].
    flops: [f64; Arithmetic::ALL.len()],
}

/// The arithmetic of a node of the plan with index `place`.
fn arithmetic(model: &dyn BackendModel, place: usize, node: usize, step: StepWorkload) -> Arithmetic {
    let plan = (place / BatchBucket::ALL.len(), place % BatchBucket::ALL.len());
    model.arithmetic(plan, node, step.rows)
}

/// Combines the times and costs of a model, without a timeline. Also returns the index of each
/// phase of its plans in the profile.
pub(crate) fn report(
    model: &dyn BackendModel,
    timed: &[TimedPlan<'_>],
    sizes: &[StepSize],
    repeated: bool,
) -> (StepProfile, PhaseIndex) {
    // `work` may also run steps of other sizes, whose plans have no steps here. They do not count.
    let total: u64 = timed.iter().filter(|t| !t.steps.is_empty()).flat_map(|t| &t.times.phases).sum();
    // Repeated steps are averaged. The steps of a prompt are parts of one run and are summed.
    let share = if repeated { 1.0 / sizes.len().max(1) as f64 } else { 1.0 };
    let mut phases: Vec<(Vec<String>, PhaseProfile, PhaseCost, &PeakRates)> = Vec::new();
    let mut index = PhaseIndex::new();
    let (mut barriers, mut kernels) = (0, 0);
    for timed in timed {
        for (phase, nanos) in timed.times.phases.iter().enumerate() {
            let numbered = || {
                let all = timed.plan.ir.nodes.iter().enumerate().zip(&timed.plan.phases);
                let here = all.filter(|(_, at)| **at == phase).map(|(node, _)| node);
                // A plan has the nodes of all attention formulations; those that no step used did
                // not run.
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
    // Rows of the MTP layer are the same tokens as those of the model, so they are counted once.
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

    /// The minimum seconds for reading, and for arithmetic.
    fn seconds(&self, limits: &PeakRates) -> (f64, f64) {
        // Skips unused kinds, whose rate may be 0.
        let all = Arithmetic::ALL.into_iter().zip(self.flops).filter(|(_, flops)| *flops > 0.0);
        let arithmetic: f64 = all.map(|(kind, flops)| flops / limits.macs(kind)).sum();
        // Rates count multiply-adds, which are two operations.
        (self.bytes / limits.read_bandwidth, arithmetic / 2.0)
    }
}

/// The key by which phases of different layers are grouped: operations, weight formats and kernels.
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

/// Computes averages over the phases of one group, and compares them with the limits.
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
    // Divided last, because the lines above need the sum.
    profile.micros /= count;
    profile.operation_micros.iter_mut().for_each(|micros| *micros /= count);
    profile
}
