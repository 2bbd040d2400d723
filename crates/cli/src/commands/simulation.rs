//! Predicts the time of a step on another machine from its measured phases: `latent profile
//! --simulate`.

use crate::args::SimulatedMachine;
use crate::output;
use anyhow::{Result, bail};
use latent_engine::{PeakRates, PhaseProfile, ProfileClock, StepProfile, TimelineSlice};
use serde::Serialize;
use std::collections::BTreeMap;

/// The assumptions of the prediction.
pub(super) const METHOD: &str = "Each phase is assumed to reach the same fraction of its limit as here. The \
     limit is the larger of two times: reading its bytes at gbs, and the largest share of a core at the \
     speed measured here. The time of the shortest phase is a fixed cost. Shares are whole units of 16 \
     outputs; imbalance of experts is as measured. A barrier costs its transfers of cache lines. Not \
     modelled: remote memory, larger caches, other instruction sets, lower clocks.";

/// Outputs of a product that are assigned to a thread as one unit: a tile of sixteen rows.
const OUTPUT_UNIT: usize = 16;

/// Minimum rows for which a phase without counted cost is divided among threads by rows.
const MIN_SHARED_ROWS: usize = 16;

/// Workers per counter of a barrier, as `GROUP` in crates/threads/src/barrier.rs.
const BARRIER_GROUP: usize = 8;

/// Minimum assumed time of moving a cache line between cores of a large machine, in nanoseconds.
const MIN_LINE_NS: f64 = 80.0;

/// The predicted time of a phase and its parts.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SimulatedPhase {
    operations: Vec<String>,
    count: usize,
    measured_micros: f64,
    micros: f64,
    /// Part of `micros` due to uneven shares.
    share_micros: f64,
    /// Part of `micros` due to uneven experts.
    expert_micros: f64,
    /// What bounds the phase: `memory`, `arithmetic` or `fixed`.
    bound: &'static str,
}

/// A step on the simulated machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SimulatedStep {
    measured_millis: f64,
    millis: f64,
    tokens_per_s: f64,
    /// Microseconds of one barrier.
    barrier_micros: f64,
    /// Milliseconds of all barriers.
    barrier_millis: f64,
    share_millis: f64,
    expert_millis: f64,
    phases: Vec<SimulatedPhase>,
}

/// Thread times of a phase, relative to its duration.
#[derive(Clone, Copy, Debug)]
struct ThreadTimes {
    /// Mean work of a thread divided by the phase's time.
    busy: f64,
    /// Maximum work of a thread divided by the mean.
    imbalance: f64,
}

/// Predictions from profiles of this machine's CPU.
pub(super) fn of_profiles(
    profiles: &[StepProfile],
    machine: &SimulatedMachine,
    limits: &PeakRates,
) -> Result<Vec<SimulatedStep>> {
    if profiles.iter().any(|step| step.clock != ProfileClock::HostThread || !step.timeline.measured) {
        bail!("--simulate needs phases measured on CPU threads: use --device cpu without offload");
    }
    if profiles.iter().any(|step| !step.ranks.is_empty()) {
        bail!("--simulate predicts for one machine: omit the other hosts");
    }
    Ok(profiles.iter().map(|step| of_step(step, machine, limits)).collect())
}

fn of_step(step: &StepProfile, machine: &SimulatedMachine, limits: &PeakRates) -> SimulatedStep {
    let slices = &step.timeline.slices;
    let runs = runs(slices);
    let threads = slices.iter().map(|slice| slice.thread + 1).max().unwrap_or(1);
    let line = machine.line_ns.unwrap_or_else(|| measured_line(&runs, threads).max(MIN_LINE_NS));
    let barrier = transfers(machine.cores, machine.nodes) * line / 1e3;
    let times: Vec<ThreadTimes> = (0..step.phases.len()).map(|phase| thread_times(&runs, phase)).collect();
    let works = step.phases.iter().zip(&times).map(|(phase, times)| phase.micros * times.busy);
    // Even the shortest phase has a fixed cost (dispatch, cold code), which more cores do not
    // reduce.
    let fixed = works.fold(f64::INFINITY, f64::min);
    let of = |(phase, times)| of_phase(phase, times, threads, fixed, machine, limits);
    let phases: Vec<SimulatedPhase> = step.phases.iter().zip(times).map(of).collect();
    let sum = |of: fn(&SimulatedPhase) -> f64| -> f64 {
        phases.iter().map(|phase| phase.count as f64 * of(phase) / 1e3).sum()
    };
    // For a prompt, times are sums over its steps, but `barriers` counts one step. Decode reports
    // averages.
    let runs = if step.steps > 1 && step.rows > step.sequences * 2 { step.steps } else { 1 };
    let barrier_millis = (runs * step.barriers) as f64 * barrier / 1e3;
    let millis = sum(|phase| phase.micros) + barrier_millis;
    SimulatedStep {
        measured_millis: step.millis,
        millis,
        tokens_per_s: step.tokens_per_s * step.millis / millis,
        barrier_micros: barrier,
        barrier_millis,
        share_millis: sum(|phase| phase.share_micros),
        expert_millis: sum(|phase| phase.expert_micros),
        phases,
    }
}

fn of_phase(
    phase: &PhaseProfile,
    times: ThreadTimes,
    threads: usize,
    fixed: f64,
    machine: &SimulatedMachine,
    limits: &PeakRates,
) -> SimulatedPhase {
    let work = phase.micros * times.busy;
    let cores = machine.cores as f64;
    let experts = phase.operations.iter().any(|operation| operation.starts_with("expert"));
    let even = |units: usize| units.div_ceil(machine.cores) as f64 * cores / units.max(1) as f64;
    // The slowest thread's share relative to an even one: experts keep their measured imbalance,
    // products are divided in whole units of outputs.
    let stretch = if experts {
        times.imbalance
    } else if phase.product_columns > 0 {
        even(phase.product_columns.div_ceil(OUTPUT_UNIT))
    } else {
        1.0
    };
    let memory_here = phase.bytes / limits.read_bandwidth * 1e6;
    let here = memory_here.max(phase.arithmetic_micros);
    let (scaled, ratio, bound) = if here > 0.0 {
        // Each of this machine's cores contributes an equal part of the limits.
        let fewer = threads as f64 / cores;
        let memory = phase.bytes / (machine.gbs * 1e9) * 1e6;
        let core = |stretch: f64| {
            (memory_here * fewer).max(phase.arithmetic_micros * fewer / machine.speed) * stretch
        };
        // Time there divided by time here. The difference between `ratio(stretch)` and `ratio(1.0)`
        // is the cost of uneven shares.
        let ratio = |stretch| memory.max(core(stretch)) / here;
        let reads = memory.max(memory_here * fewer * stretch) >= core(stretch);
        let bound = if reads { "memory" } else { "arithmetic" };
        ((work - fixed).max(0.0), (ratio(stretch), ratio(1.0)), bound)
    } else if phase.rows >= MIN_SHARED_ROWS {
        let fewer = threads as f64 / cores / machine.speed;
        ((work - fixed).max(0.0), (fewer * even(phase.rows), fewer), "arithmetic")
    } else {
        // With few rows one thread does all the work, at the speed of its core.
        let longest = (work * times.imbalance - fixed).max(0.0);
        (longest, (1.0 / machine.speed, 1.0 / machine.speed), "fixed")
    };
    let micros = fixed / machine.speed + scaled * ratio.0;
    let uneven = scaled * (ratio.0 - ratio.1);
    SimulatedPhase {
        operations: phase.operations.clone(),
        count: phase.count,
        measured_micros: phase.micros,
        micros,
        share_micros: if experts { 0.0 } else { uneven },
        expert_micros: if experts { uneven } else { 0.0 },
        bound,
    }
}

/// The slices of each run of a phase in a step, by phase and layer.
type PhaseRuns<'a> = BTreeMap<(usize, Option<usize>), Vec<&'a TimelineSlice>>;

fn runs(slices: &[TimelineSlice]) -> PhaseRuns<'_> {
    let mut runs = PhaseRuns::new();
    for slice in slices {
        runs.entry((slice.phase, slice.layer)).or_default().push(slice);
    }
    runs
}

fn thread_times(runs: &PhaseRuns<'_>, phase: usize) -> ThreadTimes {
    let (mut work, mut all, mut longest) = (0.0, 0.0, 0.0);
    for run in runs.range((phase, None)..(phase + 1, None)).map(|(_, run)| run) {
        work += run.iter().map(|slice| slice.work).sum::<f64>();
        all += run.iter().map(|slice| slice.work + slice.wait).sum::<f64>();
        longest += run.iter().map(|slice| slice.work).fold(0.0, f64::max) * run.len() as f64;
    }
    // A phase that the recorded step does not contain counts as fully busy.
    let ratio = |above: f64, below: f64| if below > 0.0 { above / below } else { 1.0 };
    ThreadTimes { busy: ratio(work, all), imbalance: ratio(longest, work).max(1.0) }
}

/// Time of moving a cache line between threads of this machine, in nanoseconds.
fn measured_line(runs: &PhaseRuns<'_>, threads: usize) -> f64 {
    if threads < 2 {
        return 0.0;
    }
    // The last thread to arrive waits only for the barrier itself. The median over phases ignores
    // interrupts.
    let last = |run: &Vec<&TimelineSlice>| run.iter().map(|slice| slice.wait).fold(f64::INFINITY, f64::min);
    let mut waits: Vec<f64> = runs.values().map(last).filter(|wait| wait.is_finite()).collect();
    waits.sort_by(f64::total_cmp);
    waits.get(waits.len() / 2).map_or(0.0, |wait| wait * 1e3 / transfers(threads, 1))
}

/// Sequential transfers of cache lines in a barrier.
fn transfers(workers: usize, nodes: usize) -> f64 {
    if workers < 2 {
        return 0.0;
    }
    // Arrivals within a group, arrivals of the groups, and the opening of each group
    // (crates/threads/src/barrier.rs).
    let per_node = workers.div_ceil(nodes);
    let groups = nodes * per_node.div_ceil(BARRIER_GROUP);
    let arrivals = per_node.min(BARRIER_GROUP) + if groups > 1 { groups } else { 0 };
    (arrivals + groups) as f64
}

/// Prints the predictions.
pub(super) fn print(
    machine: &SimulatedMachine,
    profiles: &[StepProfile],
    steps: &[SimulatedStep],
) -> Result<()> {
    let SimulatedMachine { cores, nodes, gbs, speed, .. } = machine;
    output::line("")?;
    output::line(&format!(
        "simulated: {cores} cores, {nodes} memory nodes, {gbs} GB/s, cores of {speed} times the speed"
    ))?;
    output::line(METHOD)?;
    for (profile, step) in profiles.iter().zip(steps) {
        output::line("")?;
        output::line(&format!(
            "{}; there {:.2} ms, {:.1} t/s",
            profile.title(),
            step.millis,
            step.tokens_per_s
        ))?;
        output::line(&format!(
            "of it: barriers {:.2} ms ({:.2} µs each), uneven shares {:.2} ms, uneven experts {:.2} ms",
            step.barrier_millis, step.barrier_micros, step.share_millis, step.expert_millis
        ))?;
        output::line(&format!("{:<34}{:>4}{:>10}{:>10} limit", "phase", "×", "µs here", "µs there"))?;
        for phase in &step.phases {
            let name: String = phase.operations.join(", ").chars().take(33).collect();
            output::line(&format!(
                "{name:<34}{:>4}{:>10.1}{:>10.1} {}",
                phase.count, phase.measured_micros, phase.micros, phase.bound
            ))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PeakRates = PeakRates {
        read_bandwidth: 40e9,
        int8_macs: 1e12,
        f32_macs: 5e11,
        f16_macs: 0.0,
        bf16_macs: 0.0,
        amx_int8_macs: 0.0,
    };

    fn machine(text: &str) -> SimulatedMachine {
        text.parse().unwrap()
    }

    /// A product of 100 µs that reads 3.2 MB, 80 µs at the limit.
    fn product(operation: &str, columns: usize) -> PhaseProfile {
        PhaseProfile {
            layers: None,
            count: 1,
            operations: vec![operation.to_owned()],
            operation_micros: Vec::new(),
            kernels: Vec::new(),
            rows: 1,
            micros: 100.0,
            share: 1.0,
            bytes: 3.2e6,
            gb_per_s: 32.0,
            gflop_per_s: 1.0,
            bound: "memory",
            of_limit: 0.8,
            arithmetic_micros: 20.0,
            product_columns: columns,
        }
    }

    fn micros(phase: &PhaseProfile, imbalance: f64, text: &str) -> SimulatedPhase {
        of_phase(phase, ThreadTimes { busy: 1.0, imbalance }, 2, 0.0, &machine(text), &LIMITS)
    }

    #[test]
    fn bandwidth_helps_until_cores_are_the_limit() {
        let phase = product("linear", 2048);
        assert!((micros(&phase, 1.0, "cores=2,gbs=40").micros - 100.0).abs() < 1e-9);
        assert!((micros(&phase, 1.0, "cores=2,gbs=400").micros - 100.0).abs() < 1e-9);
        let many = micros(&phase, 1.0, "cores=64,gbs=400");
        assert!((many.micros - 10.0).abs() < 1e-9 && many.bound == "memory", "{many:?}");
    }

    #[test]
    fn uneven_shares_and_experts_cost_what_is_reported() {
        // 65 units for 64 cores: one core gets two.
        let even = micros(&product("linear", 64 * 16), 1.0, "cores=64,gbs=90000");
        let uneven = micros(&product("linear", 65 * 16), 1.0, "cores=64,gbs=90000");
        assert!((uneven.micros / even.micros - 128.0 / 65.0).abs() < 1e-9);
        assert!((uneven.share_micros - (uneven.micros - even.micros)).abs() < 1e-9);
        let experts = micros(&product("expert_mlp", 65 * 16), 1.5, "cores=64,gbs=90000");
        assert!((experts.micros / even.micros - 1.5).abs() < 1e-9);
        assert!((experts.expert_micros - even.micros / 2.0).abs() < 1e-9);
    }

    #[test]
    fn barriers_cost_transfers_within_and_between_groups() {
        let all = [(1, 1), (2, 1), (8, 1), (16, 1), (64, 1), (64, 2)].map(|(n, nodes)| transfers(n, nodes));
        assert_eq!(all, [0.0, 3.0, 9.0, 12.0, 24.0, 24.0]);
        // Two threads: the later one waits 0.3 µs for three transfers.
        let slice = |thread, work, wait| TimelineSlice {
            thread,
            phase: 0,
            layer: None,
            begin: 0.0,
            work,
            wait,
            operations: Vec::new(),
        };
        let slices = [slice(0, 8.0, 2.3), slice(1, 10.0, 0.3)];
        assert!((measured_line(&runs(&slices), 2) - 100.0).abs() < 1e-9);
        let times = thread_times(&runs(&slices), 0);
        assert!((times.imbalance - 10.0 / 9.0).abs() < 1e-9 && (times.busy - 18.0 / 20.6).abs() < 1e-9);
    }
}
