//! Computing time of groups of ranks, which depends on the other ranks that compute concurrently.

use super::group::HostGroup;
use super::load::{PartLoad, StepWork};
use super::network::NetworkLink;

/// The other ranks that compute while one does, as fractions of all other ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerShares {
    /// Ranks that share its layers.
    pub(super) members: f64,
    /// Ranks of other stretches, which run other steps.
    pub(super) others: f64,
}

impl PeerShares {
    /// The fractions while one group of `members` ranks computes and the rest of `ranks` waits.
    pub(super) fn of_group(members: usize, ranks: usize) -> PeerShares {
        let members = if ranks > 1 { (members - 1) as f64 / (ranks - 1) as f64 } else { 0.0 };
        PeerShares { members, others: 0.0 }
    }

    /// The fractions while all ranks compute.
    pub(super) fn with_all(self) -> PeerShares {
        PeerShares { others: 1.0 - self.members, ..self }
    }
}

/// Times of a group with its layers, in seconds.
#[derive(Clone, Debug)]
pub(super) struct GroupSeconds {
    /// Computing time of each rank.
    pub(super) ranks: Vec<f64>,
    /// Computing time of the group: the slowest rank in each layer, and the part that rank 0
    /// computes alone.
    pub(super) computing: f64,
    /// Time of sums over its ranks.
    pub(super) sums: f64,
}

impl GroupSeconds {
    pub(super) fn new(
        group: &HostGroup<'_>,
        layers: &PartLoad,
        link: &NetworkLink,
        of: fn(&PartLoad) -> &StepWork,
        peers: PeerShares,
    ) -> GroupSeconds {
        let PeerShares { members, others } = peers;
        let hosts = group.hosts.iter();
        let shared: Vec<f64> = hosts.map(|host| host.seconds(of(layers), members + others)).collect();
        // During embedding and `lm_head`, the other members of rank 0's group wait.
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

/// Times of all groups. As many groups compute concurrently as steps are in flight.
pub(super) fn seconds(
    groups: &[HostGroup<'_>],
    layers: &[PartLoad],
    link: &NetworkLink,
    of: fn(&PartLoad) -> &StepWork,
    in_flight: usize,
) -> Vec<GroupSeconds> {
    let ranks: usize = groups.iter().map(|group| group.hosts.len()).sum();
    let peers = |group: &HostGroup<'_>| PeerShares::of_group(group.hosts.len(), ranks);
    let with = |at: usize, peers: PeerShares| GroupSeconds::new(&groups[at], &layers[at], link, of, peers);
    let alone: Vec<GroupSeconds> = (0..groups.len()).map(|at| with(at, peers(&groups[at]))).collect();
    let busy = in_flight.min(groups.len());
    if busy < 2 {
        return alone;
    }
    // During a step of this group, another group is busy for the fraction that its own step takes.
    // With fewer steps in flight than groups, only some of the other groups have one.
    let steps = (busy - 1) as f64 / (groups.len() - 1) as f64;
    let overlapped = |at: usize| {
        let own = alone[at].computing;
        let share = |other: usize| {
            let busy = if own > 0.0 { (alone[other].computing / own).min(1.0) } else { 1.0 };
            steps * busy * groups[other].hosts.len() as f64 / (ranks - 1) as f64
        };
        let others = (0..groups.len()).filter(|other| *other != at).map(share).sum();
        with(at, PeerShares { others, ..peers(&groups[at]) })
    };
    (0..groups.len()).map(overlapped).collect()
}
