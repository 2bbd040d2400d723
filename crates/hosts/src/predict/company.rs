//! How long groups of ranks compute, and which others compute at the same time.

use super::group::HostGroup;
use super::load::{PartLoad, StepWork};
use super::network::NetworkLink;

/// The other ranks that compute while one does, as shares of all others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerShares {
    /// Those that share its layers, while it runs these.
    pub(super) members: f64,
    /// Those of other stretches of layers, with other steps.
    pub(super) others: f64,
}

impl PeerShares {
    /// While a group of `members` ranks, which share their layers, computes alone among `ranks`.
    pub(super) fn of_group(members: usize, ranks: usize) -> PeerShares {
        let members = if ranks > 1 { (members - 1) as f64 / (ranks - 1) as f64 } else { 0.0 };
        PeerShares { members, others: 0.0 }
    }

    /// The same while all others compute.
    pub(super) fn with_all(self) -> PeerShares {
        PeerShares { others: 1.0 - self.members, ..self }
    }
}

/// Seconds of a group with its layers.
#[derive(Clone, Debug)]
pub(super) struct GroupSeconds {
    /// That each of its ranks computes.
    pub(super) ranks: Vec<f64>,
    /// That the group computes: its ranks wait for each other in each layer, and then for what rank 0 does alone.
    pub(super) computing: f64,
    pub(super) sums: f64,
}

impl GroupSeconds {
    pub(super) fn new(
        group: &HostGroup<'_>,
        layers: &PartLoad,
        link: &NetworkLink,
        of: fn(&PartLoad) -> &StepWork,
        company: PeerShares,
    ) -> GroupSeconds {
        let PeerShares { members, others } = company;
        let hosts = group.hosts.iter();
        let shared: Vec<f64> = hosts.map(|host| host.seconds(of(layers), members + others)).collect();
        let around = match group.hosts.first() {
            Some(host) if group.first => host.seconds(of(&group.model.around), others),
            _ => 0.0,
        };
        let computing = shared.iter().copied().fold(0.0, f64::max) + around;
        let mut ranks = shared;
        ranks.iter_mut().take(1).for_each(|first| *first += around);
        GroupSeconds { ranks, computing, sums: link.sums(of(layers), group.hosts.len()) }
    }

    pub(super) fn all(&self) -> f64 {
        self.computing + self.sums
    }
}

/// The seconds of all groups, of which as many compute at once as there are steps in flight.
pub(super) fn seconds(
    groups: &[HostGroup<'_>],
    layers: &[PartLoad],
    link: &NetworkLink,
    of: fn(&PartLoad) -> &StepWork,
    in_flight: usize,
) -> Vec<GroupSeconds> {
    let ranks: usize = groups.iter().map(|group| group.hosts.len()).sum();
    let company = |group: &HostGroup<'_>| PeerShares::of_group(group.hosts.len(), ranks);
    let with =
        |at: usize, company: PeerShares| GroupSeconds::new(&groups[at], &layers[at], link, of, company);
    let alone: Vec<GroupSeconds> = (0..groups.len()).map(|at| with(at, company(&groups[at]))).collect();
    let busy = in_flight.min(groups.len());
    if busy < 2 {
        return alone;
    }
    // another group is busy for as much of a step of this one as its own step takes, if there are enough steps for all
    let steps = (busy - 1) as f64 / (groups.len() - 1) as f64;
    let overlapped = |at: usize| {
        let own = alone[at].computing;
        let share = |other: usize| {
            let busy = if own > 0.0 { (alone[other].computing / own).min(1.0) } else { 1.0 };
            steps * busy * groups[other].hosts.len() as f64 / (ranks - 1) as f64
        };
        let others = (0..groups.len()).filter(|other| *other != at).map(share).sum();
        with(at, PeerShares { others, ..company(&groups[at]) })
    };
    (0..groups.len()).map(overlapped).collect()
}
