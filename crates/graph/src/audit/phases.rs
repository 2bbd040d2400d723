//! Rules for phases: order and data races between nodes.

use super::findings::Findings;
use super::rules::Code;
use super::trace::{ResolvedIr, ValuePlace, rows};
use crate::ir::{Epilogue, Node};
use crate::passes::{BatchBucket, heads_of_each_thread, pipeline, routed_by_each_thread};
use crate::target::BackendTarget;

/// An earlier node's access to one place, and its phase.
struct NodeAccess {
    place: ValuePlace,
    rows: u8,
    kind: NodeAccessKind,
    phase: usize,
    node: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeAccessKind {
    Read,
    Write,
    /// An in-place addition, by each thread to its own columns.
    Sum,
}

impl NodeAccessKind {
    /// Whether the order of the two accesses matters.
    fn clashes(self, other: NodeAccessKind) -> bool {
        self != NodeAccessKind::Read || other != NodeAccessKind::Read
    }
}

/// A50 to A53; false if nodes and phases do not correspond.
pub(super) fn check(
    trace: &ResolvedIr<'_>,
    phases: &[usize],
    (bucket, target): (BatchBucket, &BackendTarget),
    found: &mut Findings<'_>,
) -> bool {
    let ir = trace.ir;
    if phases.len() != ir.nodes.len() {
        let problem = format!("{} nodes have {} phases", ir.nodes.len(), phases.len());
        found.add(Code::A53, None, None, problem);
        return false;
    }
    gaps(phases, found);
    for (n, node) in ir.nodes.iter().enumerate() {
        let wanted = |name: &&str| pipeline().iter().any(|pass| pass.name == *name && pass.is_wanted(target));
        if let Some(pass) = node.op.spec().lowered_by.filter(wanted) {
            found.at(Code::A50, ir, n, None, format!("it was not lowered by {pass}"));
        }
    }
    // Accesses by root value; KV layers follow the values.
    let mut past: Vec<Vec<NodeAccess>> = Vec::new();
    past.resize_with(ir.values.len() + ir.kv_layers.len(), Vec::new);
    for (n, node) in ir.nodes.iter().enumerate() {
        if node.op.spec().is_view {
            continue; // A split touches no memory.
        }
        let now = accesses(trace, node, n, phases[n]);
        for access in &now {
            // Exceptions of `schedule`: each thread reads its own routing, or heads that it has
            // computed itself.
            let own = |earlier: &NodeAccess| {
                let other = &ir.nodes[earlier.node];
                let routing =
                    access.kind == NodeAccessKind::Read && routed_by_each_thread(other, node, bucket);
                earlier.phase == access.phase && (routing || heads_of_each_thread(ir, other, node))
            };
            if let Some((earlier, late)) = clash(&past[access.place.root], access, own) {
                report(trace, access, earlier, late, found);
            }
        }
        for access in now {
            remember(&mut past[access.place.root], access);
        }
    }
    true
}

/// A53: phases start at 0 and have no gaps.
fn gaps(phases: &[usize], found: &mut Findings<'_>) {
    let last = phases.iter().copied().max().unwrap_or(0);
    // Before the vector below is allocated: a broken plan may name any phase.
    if last >= phases.len().max(1) {
        found.add(Code::A53, None, None, format!("phase {last} exceeds the number of nodes"));
        return;
    }
    let mut there = vec![false; last + 1];
    phases.iter().for_each(|phase| there[*phase] = true);
    if let Some(gap) = there.iter().position(|there| !there).filter(|_| !phases.is_empty()) {
        found.add(Code::A53, None, None, format!("phase {gap} has no node"));
    }
}

fn accesses(trace: &ResolvedIr<'_>, node: &Node, n: usize, phase: usize) -> Vec<NodeAccess> {
    let sums = matches!(node.epilogue, Epilogue::AddTo(_));
    let rows = rows(node.path);
    let access = |place, kind| NodeAccess { place, rows, kind, phase, node: n };
    // The residual of a sum is read by the thread that then writes it, so it counts as part of the
    // sum.
    let reads = &node.inputs[..node.inputs.len() - usize::from(sums && !node.inputs.is_empty())];
    let wrote = if sums { NodeAccessKind::Sum } else { NodeAccessKind::Write };
    let mut list: Vec<NodeAccess> =
        reads.iter().map(|id| access(trace.places[id.0], NodeAccessKind::Read)).collect();
    list.extend(node.outputs.iter().map(|id| access(trace.places[id.0], wrote)));
    if let Some(id) = node.kv_layer {
        // The whole layer: which rows of the cache are touched depends on the step.
        let whole = ValuePlace { root: trace.ir.values.len() + id.0, from: 0, to: usize::MAX };
        let kind = if node.op.spec().kv.stores { NodeAccessKind::Write } else { NodeAccessKind::Read };
        list.push(access(whole, kind));
    }
    list
}

/// The earlier access that `access` conflicts with, and whether that access is in a later phase
/// instead of the same one. `own` says which accesses are to a thread's own data.
fn clash<'a>(
    past: &'a [NodeAccess],
    access: &NodeAccess,
    own: impl Fn(&NodeAccess) -> bool,
) -> Option<(&'a NodeAccess, bool)> {
    past.iter().find_map(|earlier| {
        let meet = earlier.rows & access.rows != 0 && earlier.place.overlaps(&access.place);
        if !meet || !earlier.kind.clashes(access.kind) || earlier.phase < access.phase {
            return None;
        }
        let together = earlier.kind == NodeAccessKind::Sum
            && access.kind == NodeAccessKind::Sum
            && earlier.phase == access.phase;
        (!together && !own(earlier)).then_some((earlier, earlier.phase > access.phase))
    })
}

/// Adds an access. Of equal accesses only the one in the latest phase is kept, since the others
/// cannot conflict with later nodes if it does not.
fn remember(past: &mut Vec<NodeAccess>, access: NodeAccess) {
    let alike =
        past.iter_mut().find(|a| (a.place, a.rows, a.kind) == (access.place, access.rows, access.kind));
    match alike {
        Some(earlier) if earlier.phase > access.phase => {}
        Some(earlier) => *earlier = access,
        None => past.push(access),
    }
}

fn report(
    trace: &ResolvedIr<'_>,
    access: &NodeAccess,
    earlier: &NodeAccess,
    late: bool,
    found: &mut Findings<'_>,
) {
    let does = |kind| match kind {
        NodeAccessKind::Read => "reads",
        NodeAccessKind::Write => "writes",
        NodeAccessKind::Sum => "adds to",
    };
    let root = access.place.root;
    let what = match trace.ir.values.get(root) {
        Some(value) => format!("value {}", value.name),
        None => "the cache".into(),
    };
    let other = format!("node {} {}", earlier.node, trace.ir.nodes[earlier.node].op.word());
    let (code, problem) = if late {
        let problem = format!(
            "in phase {} it {} {what}, which {other} {} only in phase {}",
            access.phase,
            does(access.kind),
            does(earlier.kind),
            earlier.phase
        );
        (Code::A51, problem)
    } else {
        let problem = format!(
            "it {} {what}, which {other} {} in the same phase {}",
            does(access.kind),
            does(earlier.kind),
            access.phase
        );
        (Code::A52, problem)
    };
    found.at(code, trace.ir, access.node, Some(what), problem);
}
