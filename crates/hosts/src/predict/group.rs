//! Groups of hosts that share a stretch of layers.

use super::load::{PartLoad, PredictionCase};
use super::network::Host;
use super::shared::SharedLoad;

/// The hosts of one stretch of layers.
pub(super) struct HostGroup<'a> {
    pub(super) model: &'a SharedLoad,
    pub(super) hosts: &'a [Host],
    /// Whether rank 0 is among them.
    pub(super) first: bool,
    /// Bytes per rank in addition to weights and cache.
    pub(super) overhead: f64,
}

impl HostGroup<'_> {
    /// The load of the host at `at` with these layers.
    pub(super) fn load(&self, at: usize, layers: PartLoad) -> PartLoad {
        let mut load = layers;
        // Rank 0 also has embedding, final norm and `lm_head`.
        if self.first && at == 0 {
            load += self.model.around;
        }
        load
    }

    pub(super) fn has_room(&self, layers: PartLoad, case: &PredictionCase) -> bool {
        self.hosts.iter().enumerate().all(|(at, host)| self.memory(at, layers, case) <= host.memory)
    }

    /// Bytes that the host at `at` needs with these layers.
    pub(super) fn memory(&self, at: usize, layers: PartLoad, case: &PredictionCase) -> f64 {
        self.load(at, layers).memory(case) + self.overhead
    }
}

/// Divides the hosts into groups, in their order.
pub(super) fn groups<'a>(
    model: &'a SharedLoad,
    hosts: &'a [Host],
    case: &PredictionCase,
) -> Vec<HostGroup<'a>> {
    let overhead = model.overhead(hosts.len() / model.members(), case);
    let of = |(at, hosts)| HostGroup { model, hosts, first: at == 0, overhead };
    hosts.chunks(model.members()).enumerate().map(of).collect()
}
