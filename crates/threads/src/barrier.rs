//! A barrier that spins for a while and then parks, with two levels for many workers.
//!
//! Workers meet in groups of neighbours, the last of each group meets the other groups, and the last of all
//! opens every group. So at most [`GROUP`] workers, or one per group, write a counter, and waiters poll a
//! cache line that only their group reads: with 64 workers an arrival waits for at most 7 + 7 others instead
//! of 63, and few cache lines cross between sockets.
// measured: docs/notes/threads-and-placement.md "Cost of a barrier"

use super::sync::{AtomicU32, Instant, LOOKS, Ordering, Parking, crowded, spin_loop, while_parked};
use std::ops::Range;
use std::time::Duration;

/// Maximum workers per group, about as many as share a slice of the last-level cache.
pub(super) const GROUP: usize = 8;

/// Flag in a group's word: the barrier has been broken open.
const BROKEN: u32 = 1;

/// Flag in a group's word: a worker is parked.
const ASLEEP: u32 = 2;

/// What opening a group adds to its word, above the flags.
const STEP: u32 = 4;

/// A counter alone in its cache line, and in the neighbouring line that the prefetcher fetches with it.
#[repr(align(128))]
struct PaddedCounter(AtomicU32);

struct BarrierGroup {
    workers: u32,
    arrived: PaddedCounter,
    word: PaddedCounter,
    parking: Parking,
}

/// A reusable barrier for a fixed number of workers.
pub(super) struct Barrier {
    groups: Box<[BarrierGroup]>,
    /// The group of each worker.
    group_of: Box<[usize]>,
    /// Groups whose workers have all arrived.
    complete: PaddedCounter,
    spin: Duration,
    cpus: usize,
}

impl Barrier {
    /// A barrier for the workers of these consecutive ranges, one per memory node. Groups do not cross nodes.
    /// A waiter spins for `spin` before it parks, and parks at once while more workers of this process are awake than `cpus`.
    pub(super) fn new(nodes: &[Range<usize>], spin: Duration, cpus: usize) -> Barrier {
        let zero = || PaddedCounter(AtomicU32::new(0));
        let (mut groups, mut group_of) = (Vec::new(), Vec::new());
        for node in nodes {
            for first in node.clone().step_by(GROUP) {
                let workers = node.end.min(first + GROUP) - first;
                group_of.extend(std::iter::repeat_n(groups.len(), workers));
                groups.push(BarrierGroup {
                    workers: workers as u32,
                    arrived: zero(),
                    word: zero(),
                    parking: Parking::new(),
                });
            }
        }
        Barrier { groups: groups.into(), group_of: group_of.into(), complete: zero(), spin, cpus }
    }

    /// Waits as the worker at `index` until all have arrived; false when the barrier was broken open.
    pub(super) fn wait(&self, index: usize) -> bool {
        let group = &self.groups[self.group_of[index]];
        // the group does not open without this worker, so the word has not changed since its last wait
        let before = group.word.0.load(Ordering::Relaxed);
        if before & BROKEN != 0 {
            return false;
        }
        // acquire and release: the last arrival sees the writes of all workers
        if group.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == group.workers {
            // no worker arrives again before the group opens, and opening is a release
            group.arrived.0.store(0, Ordering::Relaxed);
            let last = self.groups.len() == 1
                || self.complete.0.fetch_add(1, Ordering::AcqRel) + 1 == self.groups.len() as u32;
            if last {
                self.complete.0.store(0, Ordering::Relaxed);
                self.groups.iter().for_each(BarrierGroup::open);
                return true;
            }
        }
        group.pass(before, self.spin, self.cpus)
    }

    /// Lets all workers through for good, when one of them will never arrive.
    pub(super) fn break_open(&self) {
        for group in &self.groups {
            if group.word.0.fetch_or(BROKEN, Ordering::Relaxed) & ASLEEP != 0 {
                group.parking.wake_all(&group.word.0);
            }
        }
    }

    /// Restores a broken barrier. No worker may be waiting at it.
    pub(super) fn reset(&self) {
        self.complete.0.store(0, Ordering::Relaxed);
        for group in &self.groups {
            group.arrived.0.store(0, Ordering::Relaxed);
            group.word.0.fetch_and(!(BROKEN | ASLEEP), Ordering::Relaxed);
        }
    }
}

impl BarrierGroup {
    fn open(&self) {
        let opened = |word: u32| Some((word & !ASLEEP).wrapping_add(STEP));
        let (Ok(before) | Err(before)) =
            self.word.0.fetch_update(Ordering::Release, Ordering::Relaxed, opened);
        if before & ASLEEP != 0 {
            self.parking.wake_all(&self.word.0);
        }
    }

    /// Waits until the group opens; false when it is broken open.
    fn pass(&self, before: u32, spin: Duration, cpus: usize) -> bool {
        self.spin_while_unchanged(before, spin, cpus);
        loop {
            let word = self.word.0.load(Ordering::Acquire);
            if (word ^ before) & !(BROKEN | ASLEEP) != 0 {
                return true;
            }
            if word & BROKEN != 0 {
                return false;
            }
            // set in the word itself: the worker that changes the word sees whether others sleep
            let asleep = word | ASLEEP;
            if word == asleep
                || self.word.0.compare_exchange(word, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                while_parked(|| self.parking.sleep(&self.word.0, asleep));
            }
        }
    }

    fn spin_while_unchanged(&self, before: u32, spin: Duration, cpus: usize) {
        let start = Instant::now();
        while start.elapsed() < spin && !crowded(cpus) {
            for _ in 0..LOOKS {
                if (self.word.0.load(Ordering::Relaxed) ^ before) & !ASLEEP != 0 {
                    return;
                }
                spin_loop();
            }
        }
    }
}
