//! Work queues: dynamic scheduling for work of uneven cost. Workers take one chunk at a time, from
//! their own node first.
// measured: docs/notes/threads-and-placement.md "Work queue for experts"

use super::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// Bits of a work queue that count taken chunks; the upper bits are the number of the list.
// A node has at most 4 · `MAX_THREADS` = 8192 chunks per list. One word for both lets a single
// compare-and-swap check the list and take a chunk.
const CHUNK_BITS: u32 = 24;

/// Rounds of shrinking chunks: in each, the workers of a node take half of the remaining work.
const ROUNDS: usize = 3;

/// One work queue. Aligned to two cache lines, since the adjacent-line prefetcher fetches pairs of
/// lines.
#[repr(align(128))]
struct WorkQueue(AtomicU64);

/// One work queue per node. Lists are numbered from 1 in each job, and every worker starts all of
/// them in the same order.
pub(super) struct WorkQueues(Box<[WorkQueue]>);

/// A chunk of a node's list, as a fraction of its work. The chunks of a node are consecutive and
/// cover all of it.
///
/// The first chunks are large and the last small (guided self-scheduling): few atomic operations,
/// and all workers finish at about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkChunk {
    /// The node whose list it belongs to.
    pub node: usize,
    index: usize,
    workers: usize,
}

/// Number of chunks of the list of a node with this many workers.
pub(super) fn chunk_count(workers: usize) -> usize {
    (ROUNDS + 1) * workers
}

impl WorkChunk {
    /// All chunks of the list of a node with `workers` workers, in order, for tests of how jobs
    /// divide their work.
    pub fn all(workers: usize) -> impl Iterator<Item = WorkChunk> {
        (0..chunk_count(workers)).map(move |index| WorkChunk { node: 0, index, workers })
    }

    /// The chunk's range of `work` units.
    pub fn of(&self, work: u64) -> Range<u64> {
        self.border(work, self.index)..self.border(work, self.index + 1)
    }

    /// Start of a chunk. With m workers, round r has m chunks of 1/(m·2^(r+1)) of the work each;
    /// the last round divides the remainder equally.
    fn border(&self, work: u64, index: usize) -> u64 {
        let (round, turn) = (index / self.workers, index % self.workers);
        let whole = (self.workers as u128) << ROUNDS;
        let (done, size) = match round {
            round if round < ROUNDS => {
                let size = 1u128 << (ROUNDS - 1 - round);
                (whole - (self.workers as u128) * 2 * size, size)
            }
            _ => (whole - self.workers as u128, 1),
        };
        // After the last round: the end of the work.
        let at = if round > ROUNDS { whole } else { done + turn as u128 * size };
        // In u128, since `work` may use all 64 bits.
        (u128::from(work) * at / whole) as u64
    }
}

impl WorkQueues {
    pub(super) fn new(nodes: usize) -> WorkQueues {
        WorkQueues((0..nodes).map(|_| WorkQueue(AtomicU64::new(0))).collect())
    }

    /// Prepares for a job. No worker may be taking chunks.
    pub(super) fn reset(&self) {
        self.0.iter().for_each(|work_queue| work_queue.0.store(0, Ordering::Relaxed));
    }

    /// Takes the next chunk of a node's list; `workers` is the node's number of workers.
    ///
    /// Queues are not reset between lists. A queue at an earlier list counts as new, and the worker
    /// that takes the first chunk advances it. A queue at a later list means that this list is
    /// exhausted. Relaxed ordering suffices: a chunk is identified by its number alone, and
    /// barriers publish the data.
    pub(super) fn take(&self, node: usize, list: u64, workers: usize) -> Option<WorkChunk> {
        let work_queue = &self.0[node].0;
        let mut now = work_queue.load(Ordering::Relaxed);
        loop {
            let index = match (now >> CHUNK_BITS).cmp(&list) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => (now & ((1 << CHUNK_BITS) - 1)) as usize,
                std::cmp::Ordering::Greater => return None,
            };
            if index == chunk_count(workers) {
                return None;
            }
            let next = (list << CHUNK_BITS) | (index as u64 + 1);
            match work_queue.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(WorkChunk { node, index, workers }),
                Err(other) => now = other,
            }
        }
    }
}
