//! Tests of thread pools with several placements.

use super::work_queue::chunk_count;
use super::*;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

#[test]
fn every_worker_runs_every_phase() {
    for nodes in [&[1][..], &[2], &[3], &[7], &[2, 1], &[2, 2, 2, 2], &[20, 3]] {
        let mut thread_pool = ThreadPool::placed(&Placement::simulated(nodes)).unwrap();
        let threads = thread_pool.threads();
        let counts: Vec<AtomicUsize> = (0..50).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..20 {
            thread_pool.run(&|worker| {
                for count in &counts {
                    count.fetch_add(1, Ordering::Relaxed);
                    worker.barrier();
                    assert_eq!(count.load(Ordering::Relaxed) % threads, 0);
                    worker.barrier();
                }
            });
        }
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 20 * threads));
    }
}

/// Plain memory: each worker writes its element between barriers. Only the barrier synchronizes
/// accesses, which ThreadSanitizer checks.
struct PlainMemory(Vec<UnsafeCell<u64>>);

// SAFETY: in the test below one worker writes a number, and the others read it after a barrier.
unsafe impl Sync for PlainMemory {}

#[test]
fn writes_before_a_barrier_are_visible_after_it() {
    for nodes in [&[2][..], &[3], &[2, 1], &[4, 4], &[20, 3]] {
        let mut thread_pool = ThreadPool::placed(&Placement::simulated(nodes)).unwrap();
        let numbers = PlainMemory((0..thread_pool.threads()).map(|_| UnsafeCell::new(0)).collect());
        for run in 0..5u64 {
            // Capture the whole struct, which is Sync, and not its vector.
            let numbers = &numbers;
            thread_pool.run(&|worker| {
                for turn in 0..20 {
                    // SAFETY: this worker's own number, which other workers read between the next
                    // barrier and the one after it.
                    unsafe { *numbers.0[worker.index].get() = run * 100 + turn };
                    worker.barrier();
                    for number in &numbers.0 {
                        // SAFETY: no worker writes before the next barrier.
                        assert_eq!(unsafe { *number.get() }, run * 100 + turn);
                    }
                    worker.barrier();
                }
            });
        }
    }
}

#[test]
fn a_pool_has_at_least_one_worker() {
    for placement in [Placement::simulated(&[]), Placement::simulated(&[0, 0]), Placement::anywhere(0)] {
        let ran = AtomicUsize::new(0);
        ThreadPool::placed(&placement).unwrap().run(&|worker| {
            worker.barrier();
            ran.fetch_add(worker.count, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 1);
    }
}

#[test]
fn a_panic_of_one_worker_reaches_the_caller_and_the_pool_stays_usable() {
    let mut thread_pool = ThreadPool::new(3).unwrap();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        thread_pool.run(&|worker| {
            assert!(worker.index != 1, "worker one fails");
            worker.barrier();
        });
    }));
    assert!(caught.is_err());
    let count = AtomicUsize::new(0);
    thread_pool.run(&|worker| {
        worker.barrier();
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[cfg(target_os = "linux")]
#[test]
fn a_caller_is_bound_only_while_its_job_runs() {
    let before = affinity::allowed().unwrap();
    let placement = Placement::new(&Topology::detect(), 1, before.len(), PinPolicy::Cores);
    let mut thread_pool = ThreadPool::placed(&placement).unwrap();
    let seen: Mutex<Vec<(usize, ThreadId, Vec<usize>)>> = Mutex::default();
    let look = |worker: &PoolWorker<'_>| {
        let bound = affinity::allowed().unwrap();
        seen.lock().unwrap().push((worker.index, std::thread::current().id(), bound));
    };
    thread_pool.run(&look);
    assert_eq!(affinity::allowed().unwrap(), before);
    // Another thread may run the next job.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            thread_pool.run(&look);
            assert_eq!(affinity::allowed().unwrap(), before);
        });
    });
    let caught = catch_unwind(AssertUnwindSafe(|| thread_pool.run(&|_| panic!("fails"))));
    assert!(caught.is_err() && affinity::allowed().unwrap() == before);
    drop(thread_pool);
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 2 * before.len());
    for (index, _, bound) in &seen {
        assert_eq!(Some(&bound[..]), placement.cpus(*index));
    }
    let callers: Vec<ThreadId> = seen.iter().filter(|seen| seen.0 == 0).map(|seen| seen.1).collect();
    assert_ne!(callers[0], callers[1]);
}

#[test]
fn any_sequence_of_teams_runs_jobs() {
    for nodes in [&[2][..], &[3, 2], &[1, 1, 4], &[9]] {
        let mut thread_pool = ThreadPool::placed(&Placement::simulated(nodes)).unwrap();
        let threads = thread_pool.threads();
        for turn in 0..60usize {
            // A bit of a hash of the turn selects each worker except the first.
            let bits = turn.wrapping_mul(0x9E37_79B9) >> 7;
            let members: Vec<usize> =
                (0..threads).filter(|&worker| worker == 0 || bits >> worker & 1 == 1).collect();
            thread_pool.regroup(&members);
            assert_eq!(thread_pool.active(), members.len());
            let (seen, units) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
            let fails = turn % 7 == 3;
            let ran = catch_unwind(AssertUnwindSafe(|| {
                thread_pool.run(&|worker| {
                    assert_eq!(worker.count, members.len());
                    seen.lock().unwrap().push(worker.index);
                    worker.barrier();
                    assert_eq!(seen.lock().unwrap().len(), members.len());
                    for node in 0..worker.nodes.len() {
                        assert!(!worker.node_share(node, 1 << 20, 1).is_empty());
                    }
                    worker.for_each_chunk(|chunk| {
                        let work = worker.node_share(chunk.node, 1000, 1).len() as u64;
                        let range = chunk.of(work);
                        units.fetch_add((range.end - range.start) as usize, Ordering::Relaxed);
                    });
                    assert!(!fails || worker.index + 1 < worker.count, "the last one fails");
                    worker.barrier();
                });
            }));
            assert_eq!(ran.is_err(), fails);
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..members.len()));
            assert_eq!(units.into_inner(), 1000);
        }
        thread_pool.use_all_workers();
        assert_eq!(thread_pool.active(), threads);
        // Some workers sleep when the pool is dropped.
        thread_pool.regroup(&[0]);
    }
}

#[test]
fn steps_of_all_kinds_run_on_teams_of_some_size() {
    let mut thread_pool = ThreadPool::new(4).unwrap();
    let ran = AtomicUsize::new(0);
    for step in 0..300 {
        thread_pool.begin_step(step / 20 % STEP_KINDS, 1 + step % 3);
        let active = thread_pool.active();
        assert!((1..=4).contains(&active));
        thread_pool.run(&|worker| {
            assert_eq!(worker.count, active);
            worker.barrier();
            if worker.index == 0 {
                ran.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    assert_eq!(ran.into_inner(), 300);
}

/// The shares of workers without threads.
fn shares_of<T>(nodes: &[usize], ask: impl Fn(&PoolWorker<'_>) -> T) -> Vec<T> {
    let placement = Placement::simulated(nodes);
    let (inner, work_queues) =
        (Barrier::new(placement.nodes(), Duration::ZERO, 1), WorkQueues::new(nodes.len()));
    let worker = |index: usize| PoolWorker {
        index,
        count: placement.threads(),
        node: placement.nodes().iter().position(|node| node.contains(&index)).unwrap(),
        nodes: placement.nodes(),
        inner: &inner,
        work_queues: &work_queues,
        lists: Cell::new(0),
    };
    (0..placement.threads()).map(|index| ask(&worker(index))).collect()
}

#[test]
fn shares_cover_everything_once() {
    for n in [0, 1, 15, 16, 17, 1000] {
        for nodes in [&[1][..], &[2], &[3], &[7], &[64], &[3, 2, 4]] {
            let mut end = 0;
            for share in shares_of(nodes, |worker| worker.share(n, 16)) {
                assert_eq!(share.start, end);
                assert!(share.start.is_multiple_of(16) || share.is_empty());
                end = share.end;
            }
            assert_eq!(end, n);
        }
    }
}

#[test]
fn shares_of_several_lists_cover_each_once_and_stay_in_the_node() {
    for lengths in [&[100][..], &[1536, 576], &[5, 0, 16, 33, 700]] {
        for nodes in [&[1][..], &[2], &[5], &[2, 2, 2, 2], &[3, 1, 4]] {
            let mut seen: Vec<Vec<usize>> = lengths.iter().map(|&length| vec![0; length]).collect();
            let all = shares_of(nodes, |worker| {
                let shares: Vec<_> = worker.shares(lengths.iter().copied(), 16).collect();
                let own: Vec<_> =
                    lengths.iter().map(|&length| worker.node_share(worker.node, length, 16)).collect();
                (shares, own)
            });
            for (shares, own) in &all {
                for (list, items) in shares {
                    assert!(items.start.is_multiple_of(16));
                    assert!(own[*list].start <= items.start && items.end <= own[*list].end);
                    items.clone().for_each(|item| seen[*list][item] += 1);
                }
            }
            assert!(seen.iter().flatten().all(|&times| times == 1), "{lengths:?} {nodes:?}");
        }
    }
    // With one node, the lists are divided like one list.
    let two = shares_of(&[2], |worker| worker.shares([32, 96].into_iter(), 16).collect::<Vec<_>>());
    assert_eq!(two, [vec![(0, 0..32), (1, 0..32)], vec![(1, 32..96)]]);
}

#[test]
fn each_item_is_assigned_to_one_worker_of_its_blocks_node() {
    for nodes in [&[1][..], &[3], &[2, 2], &[3, 1, 2]] {
        let placement = Placement::simulated(nodes);
        for item in 0..200 {
            let block = item / 7;
            let workers = shares_of(nodes, |worker| worker.is_dealt(block, item).then_some(worker.index));
            let workers: Vec<usize> = workers.into_iter().flatten().collect();
            assert_eq!(workers.len(), 1);
            assert!(placement.nodes()[block % nodes.len()].contains(&workers[0]));
        }
    }
}

#[test]
fn every_chunk_is_taken_once_and_own_node_chunks_first() {
    for nodes in [&[1][..], &[2], &[8], &[4, 4], &[2, 2, 2, 2], &[1, 3]] {
        let mut thread_pool = ThreadPool::placed(&Placement::simulated(nodes)).unwrap();
        let work = 1000;
        for _ in 0..20 {
            let done: Vec<Vec<AtomicUsize>> =
                nodes.iter().map(|_| (0..work).map(|_| AtomicUsize::new(0)).collect()).collect();
            thread_pool.run(&|worker| {
                // Two lists without a barrier between them, and one after a barrier.
                for list in 1..=3 {
                    let mut visited = vec![];
                    worker.for_each_chunk(|chunk| {
                        if visited.last() != Some(&chunk.node) {
                            visited.push(chunk.node);
                        }
                        for unit in chunk.of(work) {
                            done[chunk.node][unit as usize].fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    // From the worker's own node on, each node once.
                    let turn = |node: &usize| (node + nodes.len() - worker.node) % nodes.len();
                    assert!(visited.iter().map(turn).is_sorted_by(|a, b| a < b), "{visited:?}");
                    if list == 2 {
                        worker.barrier();
                    }
                }
            });
            assert!(done.iter().flatten().all(|times| times.load(Ordering::Relaxed) == 3), "{nodes:?}");
        }
    }
}

#[test]
fn ranges_from_queues_cover_everything_once() {
    for nodes in [&[1][..], &[3], &[2, 1], &[4, 4]] {
        let mut thread_pool = ThreadPool::placed(&Placement::simulated(nodes)).unwrap();
        for n in [0, 1, 15, 16, 17, 1000, 4096] {
            let done: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            thread_pool.run(&|worker| {
                worker.for_each_range(n, 16, |range| {
                    assert!(range.start.is_multiple_of(16) && !range.is_empty());
                    done[range].iter().for_each(|times| {
                        times.fetch_add(1, Ordering::Relaxed);
                    });
                });
            });
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1), "{nodes:?} {n}");
        }
    }
}

#[test]
fn chunks_cover_all_work_once_and_grow_smaller() {
    for workers in [1, 2, 3, 7, 64] {
        for work in [0, 1, 5, 64, 1000, u64::from(u32::MAX) * 4096] {
            let mut end = 0;
            let mut size = u64::MAX;
            for chunk in WorkChunk::all(workers) {
                let range = chunk.of(work);
                assert_eq!(range.start, end);
                let rounded = range.end - range.start;
                assert!(rounded <= size.saturating_add(1), "{chunk:?} {work}");
                (end, size) = (range.end, rounded);
            }
            assert_eq!(end, work);
        }
    }
    let shares: Vec<_> = WorkChunk::all(2).map(|chunk| chunk.of(1600)).collect();
    assert_eq!(shares[..4], [0..400, 400..800, 800..1000, 1000..1200]);
    assert_eq!(shares[4..], [1200..1300, 1300..1400, 1400..1500, 1500..1600]);
}

#[test]
fn each_list_is_taken_once_by_late_workers_too() {
    let work_queues = WorkQueues::new(2);
    let count = |node, list| std::iter::from_fn(|| work_queues.take(node, list, 3)).count();
    assert_eq!([count(0, 1), count(0, 1), count(0, 2)], [chunk_count(3), 0, chunk_count(3)]);
    // The second node's work queue was not used by the first list. It counts as new for the second
    // list, and as exhausted for the first.
    assert_eq!([count(1, 2), count(1, 1)], [chunk_count(3), 0]);
    work_queues.reset();
    assert_eq!(count(0, 1), chunk_count(3));
}

/// Many more threads than CPUs, in one node and in several, with barriers between queues and late
/// workers.
#[test]
fn barriers_and_queues_of_64_threads_run_on_few_cpus() {
    for nodes in [&[64][..], &[32, 32], &[7, 57]] {
        let mut thread_pool = ThreadPool::placed(&Placement::simulated(nodes)).unwrap();
        const ROUNDS: usize = 6;
        let work = 1003;
        let done: Vec<Vec<AtomicUsize>> =
            (0..ROUNDS).map(|_| (0..work).map(|_| AtomicUsize::new(0)).collect()).collect();
        for run in 1..=3 {
            thread_pool.run(&|worker| {
                for (round, list) in done.iter().enumerate() {
                    // A different worker is late each time.
                    if worker.index == (17 * round + run) % 64 {
                        std::thread::yield_now();
                    }
                    worker.for_each_range(work, 16, |range| {
                        list[range].iter().for_each(|times| {
                            times.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                    worker.barrier();
                    assert!(list.iter().all(|times| times.load(Ordering::Relaxed) == run));
                }
            });
        }
        // A worker that panics releases the 63 that wait at the barrier.
        let failed = catch_unwind(AssertUnwindSafe(|| {
            thread_pool.run(&|worker| {
                assert!(worker.index != 63, "the last one fails");
                worker.barrier();
            });
        }));
        assert!(failed.is_err());
        let ran = AtomicUsize::new(0);
        thread_pool.run(&|worker| {
            ran.fetch_add(1, Ordering::Relaxed);
            worker.barrier();
            assert_eq!(ran.load(Ordering::Relaxed), 64);
        });
    }
}
