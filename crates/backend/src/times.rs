//! Times of plans.

use latent_graph::{Plan, Stage};
use std::collections::BTreeMap;

/// Times of a plan, summed over its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanTimes {
    /// Nanoseconds of each phase.
    pub phases: Vec<u64>,
    /// Nanoseconds of the first host thread in each node's kernels, without waiting. Empty if the
    /// backend does not measure them.
    pub nodes: Vec<u64>,
}

/// A phase of a plan as one thread ran it. Times are nanoseconds since the origin of
/// [`BackendModel::start_timeline`](crate::BackendModel::start_timeline).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseSpan {
    /// The plan's index among all plans of all stages.
    pub plan: usize,
    /// Number of the run of a plan. Later runs have larger numbers.
    pub run: usize,
    /// The phase's index in the plan.
    pub phase: usize,
    pub thread: usize,
    pub begin: u64,
    /// When the thread reached the barrier that ends the phase.
    pub arrived: u64,
    /// When all threads had reached it.
    pub end: u64,
    /// When the thread had finished each node of the phase, in order.
    pub nodes: Vec<(usize, u64)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileClock {
    /// The first host thread reads the clock around each operation.
    #[default]
    HostThread,
    /// The device writes timestamps around each operation; all operations are submitted together.
    Timestamps,
    /// Operations are submitted one at a time and the host waits for each: times include the round
    /// trip.
    OneByOne,
}

/// Times of one of the ranks that share a model, summed over steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankTimes {
    pub rank: usize,
    /// Name of the rank's host.
    pub host: String,
    /// Nanoseconds of all phases.
    pub nanos: u64,
    /// Nanoseconds between steps, waiting for the next one.
    pub idle: u64,
    /// Nanoseconds of the first host thread per kind of operation, by name. Empty if the backend
    /// does not measure them.
    pub operations: Vec<(String, u64)>,
}

impl RankTimes {
    /// Sums the measured times of a model's plans, the longest first.
    pub fn new((rank, host): (usize, String), stages: &[Stage], times: &[PlanTimes], idle: u64) -> RankTimes {
        // A sorted map, so that operations with equal times have a fixed order.
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        let plans = stages.iter().flat_map(|stage| &stage.plans);
        for (plan, times) in plans.zip(times) {
            let Plan { ir, .. } = plan;
            for (node, nanos) in ir.nodes.iter().zip(&times.nodes).filter(|(_, nanos)| **nanos > 0) {
                *sums.entry(node.op.word()).or_default() += nanos;
            }
        }
        let mut operations: Vec<_> = sums.into_iter().map(|(word, nanos)| (word.to_owned(), nanos)).collect();
        operations.sort_by_key(|(_, nanos)| std::cmp::Reverse(*nanos));
        let nanos = times.iter().flat_map(|times| &times.phases).sum();
        RankTimes { rank, host, nanos, idle, operations }
    }
}
