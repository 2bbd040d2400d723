//! Scheduling into phases: as few barriers as possible such that no thread reads an unfinished
//! value of another.

use super::BatchBucket;
use crate::ir::{Epilogue, Ir, Node, Op, ValueId, ValueStorage};

/// The phase of every node: nodes of one phase run between two barriers.
///
/// A node runs after every phase that produces its inputs and, if it overwrites a value in place,
/// after every phase that reads the old value. Exceptions share a phase:
///
/// * Two sums into the same rows, in small batches: each thread owns the same columns in both and
///   adds in the order of the list. With many rows, threads take columns from queues instead.
/// * Routing and its reader, in small batches (`routed_by_each_thread`).
/// * Operations by heads (`heads_of_each_thread`): a thread reads only heads that it has produced.
///
/// Nodes of attention paths without common rows do not wait for each other.
pub fn schedule(ir: &Ir, bucket: BatchBucket) -> Vec<usize> {
    let mut phases: Vec<usize> = Vec::with_capacity(ir.nodes.len());
    let uses: Vec<NodeStorageUse> = ir.nodes.iter().map(|node| NodeStorageUse::of(ir, node)).collect();
    for (n, node) in ir.nodes.iter().enumerate() {
        if node.op.spec().is_view {
            // A split creates views and touches no memory. It is shown in the phase of its
            // producer.
            let made = (0..n).rev().find(|&m| ir.nodes[m].outputs.contains(&node.inputs[0]));
            phases.push(made.map_or(0, |m| phases[m]));
            continue;
        }
        let mut phase = 0;
        // All earlier nodes, not only direct producers: buffers are reused in place, so
        // write-after-read conflicts count too. Quadratic, but once per plan.
        for (e, earlier) in ir.nodes[..n].iter().enumerate() {
            if !node.path.meets(earlier.path) || !uses[n].conflicts(&uses[e]) {
                continue;
            }
            let sums = bucket != BatchBucket::Prefill
                && sums_together(ir, earlier, node)
                && !uses[n].read_conflicts(&uses[e]);
            let together = sums
                || heads_of_each_thread(ir, earlier, node)
                || routed_by_each_thread(earlier, node, bucket);
            // The earliest possible phase, not the node's position in the list.
            phase = phase.max(phases[e] + usize::from(!together));
        }
        phases.push(phase);
    }
    phases
}

/// Storage that a node reads and writes. A residual that it adds to in place counts as written
/// only.
struct NodeStorageUse {
    reads: Vec<StoragePlace>,
    writes: Vec<StoragePlace>,
}

/// A unit of storage for conflicts: a root value, the residual stream, or a KV layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoragePlace {
    Value(ValueId),
    Hidden,
    KvLayer(usize),
}

impl NodeStorageUse {
    fn of(ir: &Ir, node: &Node) -> NodeStorageUse {
        let place = |id: &ValueId| match ir.value(ir.root(*id)).storage {
            // All values of the residual stream share one buffer, whatever their root.
            ValueStorage::Hidden => StoragePlace::Hidden,
            _ => StoragePlace::Value(ir.root(*id)),
        };
        // The residual is the last input. Its thread reads each element just before it writes it.
        let adds = matches!(node.epilogue, Epilogue::AddTo(_));
        let read = &node.inputs[..node.inputs.len() - usize::from(adds)];
        let mut uses = NodeStorageUse {
            reads: read.iter().map(place).collect(),
            writes: node.outputs.iter().map(place).collect(),
        };
        if let Some(kv_layer) = node.kv_layer {
            // Attention waits for the store of its layer: a row attends to itself and to new rows
            // before it.
            let side = if node.op.spec().kv.stores { &mut uses.writes } else { &mut uses.reads };
            side.push(StoragePlace::KvLayer(kv_layer.0));
        }
        if node.op.spec().is_view {
            return NodeStorageUse { reads: Vec::new(), writes: Vec::new() };
        }
        uses
    }

    fn conflicts(&self, earlier: &NodeStorageUse) -> bool {
        let meets = |a: &[StoragePlace], b: &[StoragePlace]| a.iter().any(|place| b.contains(place));
        meets(&self.reads, &earlier.writes)
            || meets(&self.writes, &earlier.reads)
            || meets(&self.writes, &earlier.writes)
    }

    fn read_conflicts(&self, earlier: &NodeStorageUse) -> bool {
        self.reads.iter().any(|place| earlier.writes.contains(place))
            || self.writes.iter().any(|place| earlier.reads.contains(place))
    }
}

/// Whether `node` may run in the same phase as the routing `earlier` that it reads. In small
/// batches every thread computes the whole routing for itself, which is faster than a barrier. One
/// thread writes the copy for later phases.
pub(crate) fn routed_by_each_thread(earlier: &Node, node: &Node, bucket: BatchBucket) -> bool {
    bucket != BatchBucket::Prefill
        && earlier.op == Op::Route
        && node.op == Op::ExpertGateUp
        && node.inputs.get(1) == earlier.outputs.first()
}

/// Whether both work on whole heads, with the same heads per thread, so that a thread reads only
/// its own results.
pub(crate) fn heads_of_each_thread(ir: &Ir, a: &Node, b: &Node) -> bool {
    let heads = |node: &Node| {
        let by_heads = node.op.spec().by_heads;
        node.outputs.first().filter(|_| by_heads).map(|id| ir.value(*id).heads)
    };
    heads(a).is_some() && heads(a) == heads(b)
}

/// Whether both add to the same rows, each thread to its own columns.
fn sums_together(ir: &Ir, a: &Node, b: &Node) -> bool {
    let adds = |node: &Node| matches!(node.epilogue, Epilogue::AddTo(_));
    adds(a) && adds(b) && ir.root(a.outputs[0]) == ir.root(b.outputs[0])
}
