//! The barrier and the work queues of the thread pool in every order of events: the files of `src`,
//! compiled with loom's atomics and locks.
#![allow(missing_docs, dead_code, reason = "tests; each file is compiled for what is tested of it")]

/// `sync.rs` for loom.
mod sync {
    pub(super) use super::park::Parking;
    pub(super) use loom::{
        hint::spin_loop,
        sync::atomic::{AtomicU32, AtomicU64, Ordering},
        sync::{Condvar, Mutex},
    };
    use std::cell::Cell;
    use std::time::Duration;

    pub(super) const POLLS: usize = 1;

    pub(super) fn crowded(_cpus: usize) -> bool {
        false
    }

    pub(super) fn while_parked(park: impl FnOnce()) {
        park();
    }

    /// A clock that advances by a nanosecond per reading, so that runs are reproducible.
    pub(super) struct Instant(Cell<u64>);

    impl Instant {
        pub(super) fn now() -> Instant {
            Instant(Cell::new(0))
        }

        pub(super) fn elapsed(&self) -> Duration {
            Duration::from_nanos(self.0.replace(self.0.get() + 1))
        }
    }
}

#[path = "../src/barrier.rs"]
mod barrier;
#[path = "../src/park.rs"]
mod park;
#[path = "../src/work_queue.rs"]
mod work_queue;

use barrier::Barrier;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;
use work_queue::WorkQueues;

/// Runs `worker` as every worker of a thread pool and waits for all.
fn thread_pool(threads: usize, worker: impl Fn(usize) + Send + Sync + 'static) {
    let worker = Arc::new(worker);
    let others: Vec<_> = (1..threads)
        .map(|index| {
            let worker = Arc::clone(&worker);
            thread::spawn(move || worker(index))
        })
        .collect();
    worker(0);
    others.into_iter().for_each(|other| other.join().unwrap());
}

/// Runs every order of events with at most `preemptions` preemptions. Blocking operations do not
/// count.
fn check(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// One number per worker, written without locks. Loom fails if two threads access one at the same
/// time.
struct WorkerNumbers(Vec<UnsafeCell<usize>>);

#[allow(unsafe_code, reason = "shared numbers are what barriers are for; loom checks each access")]
// SAFETY: loom fails the test at the first access that the barrier does not order.
unsafe impl Sync for WorkerNumbers {}

#[allow(unsafe_code, reason = "as above")]
impl WorkerNumbers {
    fn set(&self, index: usize, number: usize) {
        // SAFETY: loom fails the test if another access is not ordered before or after this one.
        self.0[index].with_mut(|cell| unsafe { *cell = number });
    }

    fn sum(&self) -> usize {
        // SAFETY: as above.
        self.0.iter().map(|cell| cell.with(|cell| unsafe { *cell })).sum()
    }
}

/// A barrier for nodes with these numbers of workers, and the total number.
fn barrier(workers: &[usize], spin: Duration) -> (Barrier, usize) {
    let mut end = 0;
    let node = |&workers: &usize| {
        end += workers;
        end - workers..end
    };
    let nodes: Vec<_> = workers.iter().map(node).collect();
    (Barrier::new(&nodes, spin, 1), end)
}

/// Every worker writes its number in each phase, and reads the numbers of all workers in the next.
fn phases(workers: &[usize], spin: Duration, rounds: usize) {
    let (barrier, threads) = barrier(workers, spin);
    let numbers = WorkerNumbers((0..threads).map(|_| UnsafeCell::new(0)).collect());
    thread_pool(threads, move |index| {
        for round in 1..=rounds {
            numbers.set(index, round);
            assert!(barrier.wait(index));
            assert_eq!(numbers.sum(), round * threads);
            if round < rounds {
                assert!(barrier.wait(index));
            }
        }
    });
}

#[test]
fn two_threads_meet() {
    check(4, || phases(&[2], Duration::ZERO, 2));
}

#[test]
fn two_threads_that_spin_meet() {
    check(3, || phases(&[2], Duration::from_nanos(2), 2));
}

#[test]
fn three_threads_meet() {
    check(2, || phases(&[3], Duration::ZERO, 1));
}

#[test]
fn two_groups_of_three_threads_meet() {
    check(2, || phases(&[2, 1], Duration::ZERO, 1));
}

/// The last worker never arrives: it breaks the barrier open, possibly before the others have
/// parked or even arrived.
fn broken(workers: &[usize]) {
    let ((gate, threads), (inner, _)) = (barrier(workers, Duration::ZERO), barrier(workers, Duration::ZERO));
    thread_pool(threads, move |index| {
        if index + 1 == threads {
            inner.break_open();
        } else {
            assert!(!inner.wait(index));
            assert!(!inner.wait(index));
        }
        assert!(gate.wait(index));
        if index == 0 {
            inner.reset();
        }
        assert!(gate.wait(index));
        assert!(inner.wait(index));
    });
}

#[test]
fn a_broken_barrier_releases_all_workers_and_can_be_restored() {
    check(3, || broken(&[2]));
    check(1, || broken(&[1, 2]));
}

/// A worker that has passed a barrier may fail before the others wake. They still pass that
/// barrier.
#[test]
fn breaking_open_does_not_affect_barriers_already_passed() {
    check(3, || {
        let (barrier, _) = barrier(&[2], Duration::ZERO);
        thread_pool(2, move |index| {
            assert!(barrier.wait(index));
            if index == 0 {
                barrier.break_open();
            } else {
                assert!(!barrier.wait(index));
            }
        });
    });
}

/// Two consecutive lists without a barrier between them: every chunk is taken once.
#[test]
fn chunks_are_taken_once() {
    check(2, || {
        let work_queues = WorkQueues::new(1);
        let chunks = work_queue::chunk_count(1);
        let taken = loom::sync::atomic::AtomicUsize::new(0);
        let taken = Arc::new(taken);
        let seen = Arc::clone(&taken);
        thread_pool(2, move |_| {
            for list in 1..=2 {
                while work_queues.take(0, list, 1).is_some() {
                    taken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            }
        });
        assert_eq!(seen.load(std::sync::atomic::Ordering::Relaxed), 2 * chunks);
    });
}
