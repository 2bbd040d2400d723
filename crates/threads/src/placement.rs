//! Placement of workers on memory nodes and CPUs.

use super::topology::{self, Topology};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Whether the threads of a pool are bound to CPUs (thread affinity).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinPolicy {
    /// As `Nodes` on a machine with several memory nodes, else as `Off`.
    Auto,
    /// Each thread to its own CPU; second hardware threads of cores are used last.
    Cores,
    /// Each thread to the CPUs of its memory node.
    Nodes,
    /// Unbound: the system may move threads between CPUs, and the machine counts as one node.
    #[default]
    Off,
}

impl PinPolicy {
    const ALL: [(PinPolicy, &str); 4] = [
        (PinPolicy::Auto, "auto"),
        (PinPolicy::Cores, "cores"),
        (PinPolicy::Nodes, "nodes"),
        (PinPolicy::Off, "off"),
    ];
}

impl fmt::Display for PinPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(PinPolicy::ALL.iter().find(|(pin, _)| pin == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for PinPolicy {
    type Err = String;

    fn from_str(word: &str) -> Result<PinPolicy, String> {
        let found = PinPolicy::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
        found.map(|(pin, _)| *pin).ok_or_else(|| format!("expected auto, cores, nodes or off, not {word:?}"))
    }
}

/// Maximum number of workers of a pool, more than any machine has CPUs. The system may end a
/// process that starts many times as many threads.
pub const MAX_THREADS: usize = 2048;

/// The memory node and CPUs of each worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Workers of each node: consecutive, non-empty ranges.
    nodes: Vec<Range<usize>>,
    /// CPUs that each worker is bound to; `None` if it is unbound.
    cpus: Vec<Option<Vec<usize>>>,
    /// CPUs that the workers may keep busy.
    parallelism: usize,
}

impl Placement {
    /// `threads` workers (at least one, at most [`MAX_THREADS`]), unbound, on a machine that counts
    /// as one node.
    pub fn anywhere(threads: usize) -> Placement {
        Placement::simulated(&[threads.max(1)])
    }

    /// Unbound workers on nodes that need not exist, for tests: results do not depend on nodes.
    /// There is at least one worker, and there are at most [`MAX_THREADS`].
    pub fn simulated(workers: &[usize]) -> Placement {
        let mut end = 0;
        let mut nodes = Vec::new();
        for &workers in workers {
            let workers = workers.min(MAX_THREADS - end);
            if workers > 0 {
                nodes.push(end..end + workers);
                end += workers;
            }
        }
        if nodes.is_empty() {
            (nodes, end) = (std::iter::once(0..1).collect(), 1);
        }
        Placement { nodes, cpus: vec![None; end], parallelism: topology::parallelism() }
    }

    /// Places `threads` workers (at least one, at most [`MAX_THREADS`]) on a machine where
    /// `parallelism` CPUs may be kept busy.
    ///
    /// Each node gets workers in proportion to its cores, so that all memory channels are used with
    /// any number of threads. With more workers than cores, it is in proportion to hardware
    /// threads. With more workers than CPUs, workers are unbound.
    pub fn new(topology: &Topology, parallelism: usize, threads: usize, pin: PinPolicy) -> Placement {
        let threads = threads.clamp(1, MAX_THREADS);
        let several = topology.nodes().len() > 1;
        let pin = match pin {
            PinPolicy::Auto if several => PinPolicy::Nodes,
            // Two programs bound to the same cores would halve each other's speed.
            PinPolicy::Auto => PinPolicy::Off,
            pin => pin,
        };
        // With more workers than CPUs, two bound ones would share a CPU even while another is idle.
        if pin == PinPolicy::Off || threads > topology.cpus() {
            return Placement { parallelism, ..Placement::simulated(&[threads]) };
        }
        let whole_cores = threads <= topology.cores();
        let all = if whole_cores { topology.cores() } else { topology.cpus() };
        let (mut nodes, mut cpus) = (Vec::new(), Vec::new());
        let (mut before, mut first) = (0, 0);
        for node in topology.nodes() {
            // Cumulative and rounded down: the nodes' shares add up to `threads` exactly.
            before += if whole_cores { node.cores.len() } else { node.cpus() };
            let end = threads * before / all;
            let order = node.in_order();
            cpus.extend((0..end - first).map(|worker| match pin {
                PinPolicy::Cores => Some(vec![order[worker]]),
                _ => Some(order.clone()),
            }));
            if end > first {
                nodes.push(first..end);
            }
            first = end;
        }
        Placement { nodes, cpus, parallelism }
    }

    /// Number of workers.
    pub fn threads(&self) -> usize {
        self.cpus.len()
    }

    /// Workers of each node.
    pub fn nodes(&self) -> &[Range<usize>] {
        &self.nodes
    }

    /// CPUs that a worker is bound to; `None` if it is unbound.
    pub fn cpus(&self, worker: usize) -> Option<&[usize]> {
        self.cpus[worker].as_deref()
    }

    /// CPUs that the workers may keep busy, at least one.
    pub fn parallelism(&self) -> usize {
        self.parallelism
    }
}

impl fmt::Display for Placement {
    /// `8 threads on 2 nodes`, `2 threads, a core each`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.threads();
        write!(f, "{threads} thread{}", if threads == 1 { "" } else { "s" })?;
        if self.nodes.len() > 1 {
            write!(f, " on {} nodes", self.nodes.len())?;
        }
        if self.cpus.iter().all(|cpus| cpus.as_ref().is_some_and(|cpus| cpus.len() == 1)) {
            write!(f, ", a core each")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::topology::Node;
    use super::*;

    /// Nodes with these numbers of cores, each with `threads` CPUs, numbered like Linux: all first
    /// hardware threads come first.
    fn machine(cores: &[usize], threads: usize) -> Topology {
        let all: usize = cores.iter().sum();
        let mut next = 0;
        let node = |(id, &count): (usize, &usize)| {
            let cores = next..next + count;
            next += count;
            Node { id, cores: cores.map(|core| (0..threads).map(|t| core + t * all).collect()).collect() }
        };
        Topology::of(cores.iter().enumerate().map(node).collect())
    }

    fn cpus(placement: &Placement) -> Vec<usize> {
        (0..placement.threads()).map(|worker| placement.cpus(worker).unwrap()[0]).collect()
    }

    #[test]
    fn workers_of_a_node_are_consecutive_and_use_whole_cores_first() {
        let machine = machine(&[4, 4], 2);
        let place = |threads| Placement::new(&machine, 16, threads, PinPolicy::Cores);
        assert_eq!((place(8).nodes(), cpus(&place(8))), (&[0..4, 4..8][..], (0..8).collect()));
        assert_eq!((place(5).nodes(), cpus(&place(5))), (&[0..2, 2..5][..], vec![0, 1, 4, 5, 6]));
        // The second threads of cores 0, 1, 4 and 5.
        assert_eq!(cpus(&place(12)), [0, 1, 2, 3, 8, 9, 4, 5, 6, 7, 12, 13]);
        assert_eq!(place(16).nodes(), [0..8, 8..16]);
    }

    #[test]
    fn nodes_without_workers_are_omitted() {
        let machine = machine(&[2, 2, 2, 2], 1);
        let place = Placement::new(&machine, 8, 3, PinPolicy::Nodes);
        assert_eq!(place.nodes(), [0..1, 1..2, 2..3]);
        assert_eq!([0, 1, 2].map(|worker| place.cpus(worker).unwrap().to_vec()), [[2, 3], [4, 5], [6, 7]]);
        assert_eq!(Placement::new(&machine, 8, 1, PinPolicy::Nodes).nodes().len(), 1);
        assert_eq!(Placement::new(&machine, 8, 0, PinPolicy::Nodes).threads(), 1);
    }

    #[test]
    fn any_number_of_threads_gets_distinct_cpus() {
        for cores in [&[1][..], &[2], &[4, 4], &[3, 1, 2], &[16, 16, 16, 16]] {
            for smt in [1, 2] {
                let machine = machine(cores, smt);
                for threads in 1..=machine.cpus() {
                    let place = Placement::new(&machine, machine.cpus(), threads, PinPolicy::Cores);
                    let mut seen = cpus(&place);
                    assert_eq!(place.nodes().iter().map(Range::len).sum::<usize>(), threads);
                    assert_eq!(seen.len(), threads);
                    seen.sort_unstable();
                    seen.dedup();
                    assert_eq!(seen.len(), threads, "{cores:?} {smt} {threads}");
                }
            }
        }
    }

    #[test]
    fn more_workers_than_cpus_are_not_bound() {
        let machine = machine(&[2], 1);
        let place = Placement::new(&machine, 2, 8, PinPolicy::Cores);
        assert_eq!((place.threads(), place.nodes().len(), place.parallelism()), (8, 1, 2));
        assert!((0..8).all(|worker| place.cpus(worker).is_none()));
        // A quota below the number of CPUs.
        assert_eq!(Placement::new(&machine, 1, 2, PinPolicy::Cores).parallelism(), 1);
    }

    #[test]
    fn the_number_of_threads_is_limited() {
        assert_eq!(Placement::anywhere(usize::MAX).threads(), MAX_THREADS);
        assert_eq!(Placement::simulated(&[3, usize::MAX, 0, usize::MAX]).nodes(), [0..3, 3..MAX_THREADS]);
        assert_eq!(Placement::new(&machine(&[2], 1), 2, usize::MAX, PinPolicy::Cores).threads(), MAX_THREADS);
    }

    #[test]
    fn auto_binds_only_on_several_nodes() {
        let one = Placement::new(&machine(&[4], 1), 4, 4, PinPolicy::Auto);
        assert!(one.cpus(0).is_none() && one.nodes().len() == 1);
        let two = Placement::new(&machine(&[2, 2], 1), 4, 4, PinPolicy::Auto);
        assert_eq!((two.cpus(1), two.cpus(2)), (Some(&[0, 1][..]), Some(&[2, 3][..])));
        let off = Placement::new(&machine(&[2, 2], 1), 4, 4, PinPolicy::Off);
        assert!(off.cpus(3).is_none() && off.nodes().len() == 1);
    }
}
