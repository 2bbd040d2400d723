//! A barrier that spins for a while and then sleeps, of two levels where there are many threads.
//!
//! Members meet in groups of neighbours, the last of each group meets the other groups, and the last of all opens every group. A counter
//! is thus touched by [`GROUP`] threads or by one of each group, and those who wait look at a line that only their group reads: with 64
//! threads, an arrival waits for 7 + 7 others at most and not for 63, and few lines cross from one socket to another.

use super::sync::{AtomicU32, Instant, LOOKS, Ordering, Parking, spin_loop};
use std::ops::Range;
use std::time::Duration;

/// Most workers of a group, about as many as share a part of the last cache.
pub(super) const GROUP: usize = 8;

/// A group's word: the barrier has been broken open.
const BROKEN: u32 = 1;

/// A group's word: somebody sleeps.
const ASLEEP: u32 = 2;

/// A group's word counts, in steps of this, how often the group was opened.
const STEP: u32 = 4;

/// A number alone in its cache line, and in the line that is fetched with it.
#[repr(align(128))]
struct Alone(AtomicU32);

struct Group {
    workers: u32,
    arrived: Alone,
    word: Alone,
    parking: Parking,
}

/// Waits for a fixed number of threads, again and again.
pub(super) struct Barrier {
    groups: Box<[Group]>,
    /// The group of each worker.
    group_of: Box<[usize]>,
    /// Groups that are complete.
    complete: Alone,
    spin: Duration,
}

impl Barrier {
    /// For the workers of these ranges, which follow one another: each is a node, whose workers make up groups of their own. Who waits
    /// spins for `spin` before it sleeps.
    pub(super) fn new(nodes: &[Range<usize>], spin: Duration) -> Barrier {
        let zero = || Alone(AtomicU32::new(0));
        let (mut groups, mut group_of) = (Vec::new(), Vec::new());
        for node in nodes {
            for first in node.clone().step_by(GROUP) {
                let workers = node.end.min(first + GROUP) - first;
                group_of.extend(std::iter::repeat_n(groups.len(), workers));
                groups.push(Group {
                    workers: workers as u32,
                    arrived: zero(),
                    word: zero(),
                    parking: Parking::new(),
                });
            }
        }
        Barrier { groups: groups.into(), group_of: group_of.into(), complete: zero(), spin }
    }

    /// Waits, as the worker at `index`, until all are here; false when the barrier was broken open instead.
    pub(super) fn wait(&self, index: usize) -> bool {
        let group = &self.groups[self.group_of[index]];
        // the group is not opened without this worker, so that the word is the one that it saw last
        let before = group.word.0.load(Ordering::Relaxed);
        if before & BROKEN != 0 {
            return false;
        }
        // each arrival hands on what its worker has written, and the last has it all
        if group.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == group.workers {
            // nobody arrives here again before the group is opened, which hands this on
            group.arrived.0.store(0, Ordering::Relaxed);
            let last = self.groups.len() == 1
                || self.complete.0.fetch_add(1, Ordering::AcqRel) + 1 == self.groups.len() as u32;
            if last {
                self.complete.0.store(0, Ordering::Relaxed);
                self.groups.iter().for_each(Group::open);
                return true;
            }
        }
        group.pass(before, self.spin)
    }

    /// Lets everybody through for good: somebody will never come.
    pub(super) fn break_open(&self) {
        for group in &self.groups {
            if group.word.0.fetch_or(BROKEN, Ordering::Relaxed) & ASLEEP != 0 {
                group.parking.wake_all(&group.word.0);
            }
        }
    }

    /// Makes a broken barrier whole, once nobody waits at it.
    pub(super) fn reset(&self) {
        self.complete.0.store(0, Ordering::Relaxed);
        for group in &self.groups {
            group.arrived.0.store(0, Ordering::Relaxed);
            group.word.0.fetch_and(!(BROKEN | ASLEEP), Ordering::Relaxed);
        }
    }
}

impl Group {
    fn open(&self) {
        let opened = |word: u32| Some((word & !ASLEEP).wrapping_add(STEP));
        let (Ok(before) | Err(before)) =
            self.word.0.fetch_update(Ordering::Release, Ordering::Relaxed, opened);
        if before & ASLEEP != 0 {
            self.parking.wake_all(&self.word.0);
        }
    }

    /// Waits until the group is opened, or broken open: then false.
    fn pass(&self, before: u32, spin: Duration) -> bool {
        self.spin_while_unchanged(before, spin);
        loop {
            let word = self.word.0.load(Ordering::Acquire);
            if (word ^ before) & !(BROKEN | ASLEEP) != 0 {
                return true;
            }
            if word & BROKEN != 0 {
                return false;
            }
            // announced in the word itself, so that whoever changes it knows whether anybody is to be woken
            let asleep = word | ASLEEP;
            if word == asleep
                || self.word.0.compare_exchange(word, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                self.parking.sleep(&self.word.0, asleep);
            }
        }
    }

    fn spin_while_unchanged(&self, before: u32, spin: Duration) {
        let start = Instant::now();
        while start.elapsed() < spin {
            for _ in 0..LOOKS {
                if (self.word.0.load(Ordering::Relaxed) ^ before) & !ASLEEP != 0 {
                    return;
                }
                spin_loop();
            }
        }
    }
}
