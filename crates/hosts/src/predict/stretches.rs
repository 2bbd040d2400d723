//! Assignment of layers to groups of ranks, by dynamic programming.

use super::group::{HostGroup, groups};
use super::load::{PartLoad, PredictionCase};
use super::network::{Host, NetworkLink};
use super::peers::{GroupSeconds, PeerShares};
use super::shared::SharedLoad;
use latent_types::Setting;
use std::ops::Range;

/// Why hosts cannot run the model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    #[error("cannot split {layers} layers into {stretches} stretches: each needs at least one layer")]
    TooMany { stretches: usize, layers: usize },
    #[error(
        "the model does not fit: weights, a cache of {context} tokens and scratch memory need {needed:.1} \
         GB, but the hosts have {memory:.1} GB, and layers are not split; use more hosts, a smaller {}, or a \
         smaller quantization",
        Setting::Context
    )]
    Memory {
        /// Tokens of context of all sequences.
        context: usize,
        needed: f64,
        memory: f64,
    },
    #[error("{0}")]
    Cut(String),
}

/// Number of limits on the slowest stretch that are tried if several steps are in flight.
const CAPS: usize = 24;

/// Finds the stretches of layers with the most tokens per second that fit into the memory of all
/// hosts.
pub(super) fn stretches(
    model: &SharedLoad,
    hosts: &[Host],
    link: &NetworkLink,
    case: &PredictionCase,
) -> Result<Vec<Range<usize>>, PredictError> {
    let groups = groups(model, hosts, case);
    let table = SecondsTable::new(model, &groups, link, case)?;
    let Some((sum, slowest, quickest)) = table.best(f64::INFINITY) else {
        let mut layers = PartLoad::default();
        model.layers.iter().for_each(|layer| layers += *layer);
        let memory = hosts.iter().map(|host| host.memory).sum::<f64>() / 1e9;
        let overhead: f64 = groups.iter().map(|group| group.overhead * group.hosts.len() as f64).sum();
        // Every member has its part of the layers; rank 0 alone has the load around them.
        let shared = layers.memory(case) * model.members() as f64;
        let needed = (shared + model.around.memory(case) + overhead) / 1e9;
        let context = case.cached_tokens();
        return Err(PredictError::Memory { context, needed, memory });
    };
    let crossing = crossings(model, groups.len(), link, case);
    // The time in which all steps in flight finish once: no less than the latency of one step, and
    // than all of them take on the slowest group, which runs them in turn.
    let cycle = |sum: f64, slowest: f64| (sum + crossing).max(case.in_flight as f64 * slowest);
    let mut best = (cycle(sum, slowest), quickest);
    // With several steps in flight the slowest stretch limits the rate, while the table minimizes
    // the sum. So the minimum is computed again with lower and lower limits on the slowest stretch.
    for at in 1..if case.in_flight > 1 { CAPS } else { 1 } {
        let cap = slowest * (1.0 - at as f64 / CAPS as f64);
        // Lower limits have no solution either.
        let Some((sum, slowest, stretches)) = table.best(cap) else { break };
        let found = cycle(sum, slowest);
        if found < best.0 {
            best = (found, stretches);
        }
    }
    Ok(best.1)
}

/// Seconds of a step for sending rows between stretches, and back to rank 0.
pub(super) fn crossings(
    model: &SharedLoad,
    stretches: usize,
    link: &NetworkLink,
    case: &PredictionCase,
) -> f64 {
    let rows = case.rows as f64 * case.wire.bytes() as f64 * model.row;
    if stretches > 1 { stretches as f64 * link.message(rows) } else { 0.0 }
}

/// Seconds of each group with each stretch that fits, indexed by group, first layer, and number of
/// layers minus one.
struct SecondsTable {
    seconds: Vec<Vec<Vec<f64>>>,
    layers: usize,
}

impl SecondsTable {
    fn new(
        model: &SharedLoad,
        groups: &[HostGroup<'_>],
        link: &NetworkLink,
        case: &PredictionCase,
    ) -> Result<SecondsTable, PredictError> {
        let (count, layers) = (groups.len(), model.layers.len());
        if count == 0 || count > layers {
            return Err(PredictError::TooMany { stretches: count, layers });
        }
        let ranks: usize = groups.iter().map(|group| group.hosts.len()).sum();
        let of_start = |at: usize, start: usize| -> Vec<f64> {
            let group = &groups[at];
            // How long groups overlap depends on all stretches, which are not known yet. With steps
            // in flight the table assumes that all ranks compute, which is the slowest case.
            let few = PeerShares::of_group(group.hosts.len(), ranks);
            let peers = if case.in_flight > 1 { few.with_all() } else { few };
            let seconds =
                |own: PartLoad| GroupSeconds::new(group, &own, link, |load| &load.step, peers).all();
            let mut own = PartLoad::default();
            // Each later group needs at least one layer.
            let ends = start..layers - (count - 1 - at);
            let loads = ends.map(|layer| {
                own += model.layers[layer];
                own
            });
            // More layers never need less memory, so the first stretch without room ends the list.
            loads.take_while(|own| group.has_room(*own, case)).map(seconds).collect()
        };
        let of_group = |at: usize| {
            let of_start = |start| if start < at { Vec::new() } else { of_start(at, start) };
            (0..layers).map(of_start).collect()
        };
        Ok(SecondsTable { seconds: (0..count).map(of_group).collect(), layers })
    }

    /// The stretches with the minimum sum of times in which no group takes longer than `cap`.
    /// Returns the sum, the time of the slowest one, and the stretches.
    fn best(&self, cap: f64) -> Option<(f64, f64, Vec<Range<usize>>)> {
        // `reached[group][end]`: the minimum seconds in which the groups up to `group` run the
        // layers before `end`, and the first layer of the last of them.
        let mut reached: Vec<Vec<Option<(f64, usize)>>> = Vec::new();
        for group in &self.seconds {
            let mut ends = vec![None; self.layers + 1];
            for (start, of_start) in group.iter().enumerate() {
                let before = match reached.last() {
                    None if start == 0 => 0.0,
                    None => continue,
                    Some(before) => match before[start] {
                        Some((seconds, _)) => seconds,
                        None => continue,
                    },
                };
                for (more, seconds) in of_start.iter().enumerate().filter(|(_, seconds)| **seconds <= cap) {
                    let (end, sum) = (start + more + 1, before + seconds);
                    if ends[end].is_none_or(|(least, _)| sum < least) {
                        ends[end] = Some((sum, start));
                    }
                }
            }
            reached.push(ends);
        }
        let (sum, _) = reached.last()?[self.layers]?;
        // Follow the starts back from the last layer.
        let (mut end, mut slowest, mut found) = (self.layers, 0.0f64, Vec::new());
        for (group, ends) in self.seconds.iter().zip(&reached).rev() {
            let (_, start) = ends[end]?;
            slowest = slowest.max(group[start][end - start - 1]);
            found.push(start..end);
            end = start;
        }
        found.reverse();
        Some((sum, slowest, found))
    }
}
