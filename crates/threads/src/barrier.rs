//! A barrier that spins for a while and then parks, with two levels for many workers.
//!
//! Workers arrive at the counter of their group. The last one of each group arrives at a common
//! counter, and the last of all opens every group. So at most [`GROUP`] workers, or one per group,
//! write to a counter, and waiters poll a cache line that only their group reads. With 64 workers,
//! an arrival waits for at most 7 + 7 transfers of a cache line instead of 63, and few of them
//! cross between sockets.
// measured: docs/notes/threads-and-placement.md "Cost of a barrier"

use super::sync::{AtomicU32, Instant, Ordering, POLLS, Parking, crowded, spin_loop, while_parked};
use std::ops::Range;
use std::time::Duration;

/// Maximum workers per group, about as many as share a slice of the last-level cache.
pub(super) const GROUP: usize = 8;

/// Flag in a group's word: the barrier has been broken open.
const BROKEN: u32 = 1;

/// Flag in a group's word: a worker is parked or about to park, so opening must wake it. Without
/// the flag, opening needs no system call.
const ASLEEP: u32 = 2;

/// Increment of a group's word per opening, above the flags. The count may wrap, since waiters only
/// compare it with the previous one.
const STEP: u32 = 4;

/// A counter aligned to two cache lines, since the adjacent-line prefetcher fetches pairs of lines.
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
    /// A barrier for the workers of these consecutive ranges, one per memory node. Groups do not
    /// cross nodes. A waiter spins for `spin` before it parks. While more than `cpus` workers of
    /// this process are awake, it parks immediately.
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

    /// Waits as the worker at `index` until all have arrived; false if the barrier was broken open.
    pub(super) fn wait(&self, index: usize) -> bool {
        let group = &self.groups[self.group_of[index]];
        // Read before arriving: afterwards the group may open at any time. Until then its count is
        // stable, so Relaxed suffices.
        let before = group.word.0.load(Ordering::Relaxed);
        if before & BROKEN != 0 {
            return false;
        }
        // Release publishes this worker's writes, and Acquire makes the last arrival see those of
        // all workers of the group.
        if group.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == group.workers {
            // No worker arrives again before the group opens, and opening is a Release that orders
            // this store before.
            group.arrived.0.store(0, Ordering::Relaxed);
            // The same ordering between groups: the last group to complete sees the writes of all
            // workers.
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

    /// Releases all workers, now and in later waits, because one of them will never arrive.
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
        // One operation adds to the count, clears ASLEEP and returns whether it was set. Release
        // publishes the writes of all workers.
        let opened = |word: u32| Some((word & !ASLEEP).wrapping_add(STEP));
        let (Ok(before) | Err(before)) =
            self.word.0.fetch_update(Ordering::Release, Ordering::Relaxed, opened);
        if before & ASLEEP != 0 {
            self.parking.wake_all(&self.word.0);
        }
    }

    /// Waits until the group opens; false if it is broken open.
    fn pass(&self, before: u32, spin: Duration, cpus: usize) -> bool {
        self.spin_while_unchanged(before, spin, cpus);
        loop {
            // Acquire pairs with the Release of `open`. The count comes before BROKEN: a worker
            // that has passed this barrier may panic before the others wake, and they have still
            // passed it.
            let word = self.word.0.load(Ordering::Acquire);
            if (word ^ before) & !(BROKEN | ASLEEP) != 0 {
                return true;
            }
            if word & BROKEN != 0 {
                return false;
            }
            // ASLEEP is in the word itself, so the worker that changes the word sees it. If the
            // word changes after the exchange, `sleep` returns immediately.
            let asleep = word | ASLEEP;
            if word == asleep
                || self.word.0.compare_exchange(word, asleep, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                while_parked(|| self.parking.sleep(&self.word.0, asleep));
            }
        }
    }

    fn spin_while_unchanged(&self, before: u32, spin: Duration, cpus: usize) {
        // Relaxed polls: `pass` loads the word again with Acquire.
        let start = Instant::now();
        while start.elapsed() < spin && !crowded(cpus) {
            for _ in 0..POLLS {
                if (self.word.0.load(Ordering::Relaxed) ^ before) & !ASLEEP != 0 {
                    return;
                }
                spin_loop();
            }
        }
    }
}
