//! The CPUs that this process may use, by memory node (NUMA node) and core.

use super::affinity;
use std::collections::BTreeMap;
use std::path::Path;

/// Memory nodes with their usable CPUs, in ascending order. Nodes without usable CPUs are omitted.
/// At least one CPU is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    nodes: Vec<Node>,
}

/// A memory node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The system's number of the node.
    pub id: usize,
    /// The usable CPUs of each core.
    pub cores: Vec<Vec<usize>>,
}

impl Topology {
    /// This machine within the process's affinity (`taskset`, cpusets). If the system does not
    /// report it, one node with [`parallelism`] cores.
    pub fn detect() -> Topology {
        match affinity::allowed() {
            Some(cpus) if !cpus.is_empty() => Topology::read(Path::new("/sys/devices/system"), &cpus),
            _ => Topology {
                nodes: vec![Node { id: 0, cores: (0..parallelism()).map(|cpu| vec![cpu]).collect() }],
            },
        }
    }

    /// Reads `cpu/cpuN/topology/thread_siblings_list` and `node/nodeN/cpulist` below `root`
    /// (`/sys/devices/system`) for the CPUs `allowed`. Missing and malformed files are ignored: a
    /// CPU without siblings is a core, one without a node belongs to the first node.
    pub fn read(root: &Path, allowed: &[usize]) -> Topology {
        let node_of = read_nodes(&root.join("node"));
        let first = allowed.iter().filter_map(|cpu| node_of.get(cpu)).min().copied().unwrap_or(0);
        let mut nodes: BTreeMap<usize, BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
        for &cpu in allowed {
            let siblings = read_list(&root.join(format!("cpu/cpu{cpu}/topology/thread_siblings_list")));
            // A core is identified by the lowest number of its siblings. A list without the CPU
            // itself is malformed.
            let core = siblings.filter(|list| list.contains(&cpu)).map_or(cpu, |list| list[0]);
            let node = node_of.get(&cpu).copied().unwrap_or(first);
            let cpus = nodes.entry(node).or_default().entry(core).or_default();
            if !cpus.contains(&cpu) {
                cpus.push(cpu);
            }
        }
        let node = |(id, cores): (usize, BTreeMap<usize, Vec<usize>>)| Node {
            id,
            cores: cores.into_values().collect(),
        };
        Topology { nodes: nodes.into_iter().map(node).collect() }
    }

    /// A machine with these nodes, which are not empty.
    #[cfg(test)]
    pub(super) fn of(nodes: Vec<Node>) -> Topology {
        Topology { nodes }
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Cores of all nodes.
    pub fn cores(&self) -> usize {
        self.nodes.iter().map(|node| node.cores.len()).sum()
    }

    /// CPUs (hardware threads) of all nodes.
    pub fn cpus(&self) -> usize {
        self.nodes.iter().map(Node::cpus).sum()
    }
}

impl Node {
    pub fn cpus(&self) -> usize {
        self.cores.iter().map(Vec::len).sum()
    }

    /// The node's CPUs: the first of every core, then the second of every core that has one, and so
    /// on.
    pub fn in_order(&self) -> Vec<usize> {
        let threads = self.cores.iter().map(Vec::len).max().unwrap_or(0);
        (0..threads)
            .flat_map(|nth| self.cores.iter().filter_map(move |core| core.get(nth).copied()))
            .collect()
    }
}

/// CPUs that the process may keep busy: the minimum of its affinity and its cgroup quotas (versions
/// 1 and 2).
pub fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Number of threads for a machine where `parallelism` CPUs may be kept busy: one per core.
// Products are bound by the multipliers of a core or by memory bandwidth. Its second hardware
// thread shares both, and only adds a worker to wait for.
pub fn threads_for(topology: &Topology, parallelism: usize) -> usize {
    topology.cores().min(parallelism).max(1)
}

/// The node of each CPU.
fn read_nodes(folder: &Path) -> BTreeMap<usize, usize> {
    let mut node_of = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("node")).and_then(|id| id.parse().ok());
        let Some(id) = id else { continue };
        for cpu in read_list(&entry.path().join("cpulist")).unwrap_or_default() {
            node_of.entry(cpu).or_insert(id);
        }
    }
    node_of
}

fn read_list(file: &Path) -> Option<Vec<usize>> {
    parse_list(&std::fs::read_to_string(file).ok()?)
}

/// Maximum CPU number, above that of any machine. A longer range is malformed and is not
/// enumerated.
const MAX_CPUS: usize = 1 << 16;

/// Parses a CPU list in the kernel's format, `0-3,8,10-11`, into ascending order. None if it is
/// malformed or empty.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        if from > to || to >= MAX_CPUS {
            return None;
        }
        cpus.extend(from..=to);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A folder like `/sys/devices/system`: the siblings of each CPU, and the CPUs of each node.
    fn system(cores: &[&str], nodes: &[(usize, &str)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: String, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        };
        for siblings in cores {
            for cpu in parse_list(siblings).unwrap() {
                write(format!("cpu/cpu{cpu}/topology/thread_siblings_list"), siblings);
            }
        }
        for (node, cpus) in nodes {
            write(format!("node/node{node}/cpulist"), cpus);
        }
        write("node/online".into(), "0");
        folder
    }

    fn read(folder: &TempDir, allowed: impl IntoIterator<Item = usize>) -> Topology {
        Topology::read(folder.path(), &allowed.into_iter().collect::<Vec<_>>())
    }

    fn shape(topology: &Topology) -> Vec<(usize, Vec<Vec<usize>>)> {
        topology.nodes().iter().map(|node| (node.id, node.cores.clone())).collect()
    }

    #[test]
    fn one_node_of_two_cores_with_two_threads_each() {
        let folder = system(&["0,2", "1,3"], &[(0, "0-3")]);
        let topology = read(&folder, 0..4);
        assert_eq!(shape(&topology), [(0, vec![vec![0, 2], vec![1, 3]])]);
        assert_eq!((topology.cores(), topology.cpus()), (2, 4));
        assert_eq!(topology.nodes()[0].in_order(), [0, 1, 2, 3]);
        // One thread per core, fewer with a quota, at least one.
        assert_eq!([1, 2, 4].map(|quota| threads_for(&topology, quota)), [1, 2, 2]);
    }

    #[test]
    fn two_nodes_of_four_cores() {
        let cores = ["0", "1", "2", "3", "4", "5", "6", "7"];
        let topology = read(&system(&cores, &[(0, "0-3"), (1, "4-7")]), 0..8);
        let ids = |range: std::ops::Range<usize>| range.map(|cpu| vec![cpu]).collect::<Vec<_>>();
        assert_eq!(shape(&topology), [(0, ids(0..4)), (1, ids(4..8))]);
        assert_eq!(threads_for(&topology, 8), 8);
    }

    #[test]
    fn a_cpuset_leaves_some_cpus_of_each_node_and_half_of_a_core() {
        let folder = system(&["0,8", "1,9", "4,12", "5,13"], &[(0, "0-3,8-11"), (1, "4-7,12-15")]);
        let topology = read(&folder, [1, 9, 12]);
        assert_eq!(shape(&topology), [(0, vec![vec![1, 9]]), (1, vec![vec![12]])]);
        assert_eq!(threads_for(&topology, 3), 2);
        // A set within one node.
        assert_eq!(shape(&read(&folder, [4, 5])), [(1, vec![vec![4], vec![5]])]);
    }

    #[test]
    fn sixty_four_cores_in_four_interleaved_nodes() {
        let cores: Vec<String> = (0..64).map(|core| format!("{core},{}", core + 64)).collect();
        let cores: Vec<&str> = cores.iter().map(String::as_str).collect();
        let cpus = |node: usize| {
            let of = (0..128).filter(|cpu| cpu % 4 == node).map(|cpu| cpu.to_string());
            of.collect::<Vec<_>>().join(",")
        };
        let lists = [cpus(0), cpus(1), cpus(2), cpus(3)];
        let nodes: Vec<(usize, &str)> = lists.iter().map(String::as_str).enumerate().collect();
        let topology = read(&system(&cores, &nodes), 0..128);
        assert_eq!((topology.nodes().len(), topology.cores(), topology.cpus()), (4, 64, 128));
        assert_eq!(topology.nodes()[3].cores[1], [7, 71]);
        assert_eq!(threads_for(&topology, 128), 64);
    }

    #[test]
    fn holes_in_the_numbers_and_nodes_without_cpus() {
        let folder = system(&["0-1", "6-7"], &[(0, "0-1"), (2, "6-7"), (3, "")]);
        let topology = read(&folder, [0, 1, 6, 7]);
        assert_eq!(shape(&topology), [(0, vec![vec![0, 1]]), (2, vec![vec![6, 7]])]);
    }

    #[test]
    fn missing_and_malformed_files_are_ignored() {
        let nothing = tempfile::tempdir().unwrap();
        assert_eq!(shape(&read(&nothing, [3, 5])), [(0, vec![vec![3], vec![5]])]);
        let folder = system(&["0,1", "2,3"], &[(0, "0-1"), (1, "two and three")]);
        std::fs::write(folder.path().join("cpu/cpu0/topology/thread_siblings_list"), "0-").unwrap();
        // Siblings that do not include the CPU itself.
        std::fs::write(folder.path().join("cpu/cpu3/topology/thread_siblings_list"), "0-1").unwrap();
        assert_eq!(shape(&read(&folder, 0..4)), [(0, vec![vec![0, 1], vec![2], vec![3]])]);
    }

    #[test]
    fn cpu_lists_are_ranges_and_numbers() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("7,7,5-6"), Some(vec![5, 6, 7]));
        for malformed in ["", "a", "3-1", "1,,2", "-4", "1-2-3", "0-4000000000"] {
            assert_eq!(parse_list(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn detection_finds_a_cpu_for_each_thread() {
        let topology = Topology::detect();
        assert!(topology.cores() >= 1 && topology.cpus() >= topology.cores());
        assert!(threads_for(&topology, parallelism()) <= topology.cpus());
    }
}
