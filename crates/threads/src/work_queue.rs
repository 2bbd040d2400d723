//! Work queues: dynamic scheduling for work of uneven cost. Threads take chunk after chunk, from their own node first.

use super::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// Bits of a work queue that count parts; the others hold the number of the list.
const PART_BITS: u32 = 24;

/// In each round, every worker of a node can take half of what an equal share of the rest would be.
const ROUNDS: usize = 3;

/// One work queue, alone in its cache line and in the line that is fetched with it.
#[repr(align(128))]
struct WorkQueue(AtomicU64);

/// One work queue a node. Lists are numbered from 1 in each job, and every worker comes to all of them in the same order.
pub(super) struct WorkQueues(Box<[WorkQueue]>);

/// A part of a node's list, as a fraction of its work: parts of a node follow one another and together are all.
///
/// The first parts are large and the last small, so that work queues are touched seldom and yet all threads end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The node whose list it is of.
    pub node: usize,
    index: usize,
    workers: usize,
}

/// Parts of the list of a node with so many workers.
pub(super) fn part_count(workers: usize) -> usize {
    (ROUNDS + 1) * workers
}

impl Chunk {
    /// All chunks of the list of a node with `workers` workers, in order: what tests of a job's cutting walk through.
    pub fn all(workers: usize) -> impl Iterator<Item = Chunk> {
        (0..part_count(workers)).map(move |index| Chunk { node: 0, index, workers })
    }

    /// The part's range of `work` units.
    pub fn of(&self, work: u64) -> Range<u64> {
        self.border(work, self.index)..self.border(work, self.index + 1)
    }

    /// Where a part begins. With m workers, round r has m parts of 1/(m·2^(r+1)) each, and the last round shares out what is left.
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
        // one more round than there is: the end
        let at = if round > ROUNDS { whole } else { done + turn as u128 * size };
        (u128::from(work) * at / whole) as u64
    }
}

impl WorkQueues {
    pub(super) fn new(nodes: usize) -> WorkQueues {
        WorkQueues((0..nodes).map(|_| WorkQueue(AtomicU64::new(0))).collect())
    }

    /// Before a job, while nobody takes parts.
    pub(super) fn reset(&self) {
        self.0.iter().for_each(|work_queue| work_queue.0.store(0, Ordering::Relaxed));
    }

    /// The next part of the node's list that is nobody's yet; `workers` is how many workers the node has.
    ///
    /// Nothing is ever set back between lists. A work queue that still stands at an earlier list counts as new, and whoever takes the first
    /// part moves it on; one that stands at a later list says that this one has been taken to its end. Parts are found by their number
    /// alone, and what was written before is handed on by barriers, so that no order is asked for.
    pub(super) fn take(&self, node: usize, list: u64, workers: usize) -> Option<Chunk> {
        let work_queue = &self.0[node].0;
        let mut now = work_queue.load(Ordering::Relaxed);
        loop {
            let index = match (now >> PART_BITS).cmp(&list) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => (now & ((1 << PART_BITS) - 1)) as usize,
                std::cmp::Ordering::Greater => return None,
            };
            if index == part_count(workers) {
                return None;
            }
            let next = (list << PART_BITS) | (index as u64 + 1);
            match work_queue.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Chunk { node, index, workers }),
                Err(other) => now = other,
            }
        }
    }
}
