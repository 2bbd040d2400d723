//! Cursors: lists of work of which the threads take part after part, those of their own node first.

use super::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// Bits of a cursor that count parts; the others hold the number of the list.
const PART_BITS: u32 = 24;

/// In each round, every member of a node can take half of what an equal share of the rest would be.
const ROUNDS: usize = 3;

/// One cursor, alone in its cache line and in the line that is fetched with it.
#[repr(align(128))]
struct Cursor(AtomicU64);

/// One cursor a node. Lists are numbered from 1 in each job, and every member comes to all of them in the same order.
pub(super) struct Cursors(Box<[Cursor]>);

/// A part of a node's list, as a fraction of its work: parts of a node follow one another and together are all.
///
/// The first parts are large and the last small, so that cursors are touched seldom and yet all threads end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The node whose list it is of.
    pub node: usize,
    index: usize,
    members: usize,
}

/// Parts of the list of a node with so many members.
pub(super) fn part_count(members: usize) -> usize {
    (ROUNDS + 1) * members
}

impl Part {
    /// All parts of the list of a node with so many members.
    #[cfg(test)]
    pub fn all(members: usize) -> impl Iterator<Item = Part> {
        (0..part_count(members)).map(move |index| Part { node: 0, index, members })
    }

    /// The part's range of `work` units.
    pub fn of(&self, work: u64) -> Range<u64> {
        self.border(work, self.index)..self.border(work, self.index + 1)
    }

    /// Where a part begins. With m members, round r has m parts of 1/(m·2^(r+1)) each, and the last round shares out what is left.
    fn border(&self, work: u64, index: usize) -> u64 {
        let (round, turn) = (index / self.members, index % self.members);
        let whole = (self.members as u128) << ROUNDS;
        let (done, size) = match round {
            round if round < ROUNDS => {
                let size = 1u128 << (ROUNDS - 1 - round);
                (whole - (self.members as u128) * 2 * size, size)
            }
            _ => (whole - self.members as u128, 1),
        };
        // one more round than there is: the end
        let at = if round > ROUNDS { whole } else { done + turn as u128 * size };
        (u128::from(work) * at / whole) as u64
    }
}

impl Cursors {
    pub(super) fn new(nodes: usize) -> Cursors {
        Cursors((0..nodes).map(|_| Cursor(AtomicU64::new(0))).collect())
    }

    /// Before a job, while nobody takes parts.
    pub(super) fn reset(&self) {
        self.0.iter().for_each(|cursor| cursor.0.store(0, Ordering::Relaxed));
    }

    /// The next part of the node's list that is nobody's yet; `members` is how many members the node has.
    ///
    /// Nothing is ever set back between lists. A cursor that still stands at an earlier list counts as new, and whoever takes the first
    /// part moves it on; one that stands at a later list says that this one has been taken to its end. Parts are found by their number
    /// alone, and what was written before is handed on by barriers, so that no order is asked for.
    pub(super) fn take(&self, node: usize, list: u64, members: usize) -> Option<Part> {
        let cursor = &self.0[node].0;
        let mut now = cursor.load(Ordering::Relaxed);
        loop {
            let index = match (now >> PART_BITS).cmp(&list) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => (now & ((1 << PART_BITS) - 1)) as usize,
                std::cmp::Ordering::Greater => return None,
            };
            if index == part_count(members) {
                return None;
            }
            let next = (list << PART_BITS) | (index as u64 + 1);
            match cursor.compare_exchange_weak(now, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(Part { node, index, members }),
                Err(other) => now = other,
            }
        }
    }
}
