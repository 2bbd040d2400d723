//! A persistent thread pool that runs every phase of every step.
//!
//! The caller is worker 0 and computes too, so that a pool of one starts no thread. Between phases workers
//! meet at a [barrier](PoolWorker::barrier). Each worker computes its static [share](PoolWorker::share) of dense work
//! from its index, without synchronization; work of uneven cost is cut into chunks and taken from [work
//! queues](PoolWorker::for_each_chunk).
//!
//! On a machine with several memory nodes, the workers of a node have consecutive indices ([`Placement`]),
//! and so have their shares of a weight's outputs: the worker that packs a weight row also reads it, and the
//! system places memory on the node that writes it first.
#![allow(
    unsafe_code,
    reason = "a job borrowed by the caller is run by threads that outlive the borrow's type"
)]

mod affinity;
mod awake;
mod barrier;
#[cfg(target_os = "linux")]
mod futex;
#[cfg(not(target_os = "linux"))]
mod park;
mod placement;
mod priority;
mod share;
mod sync;
mod topology;
mod work_queue;

pub use placement::{MAX_THREADS, PinPolicy, Placement};
pub use priority::lower_priority;
pub use topology::{Node, Topology, parallelism, threads_for};
pub use work_queue::WorkChunk;

use affinity::AffinityGuard;
use awake::AwakeGuard;
use barrier::Barrier;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use work_queue::WorkQueues;

/// How long a waiter spins before it parks: several times the cost of parking and waking (30 µs on a virtual
/// machine), far less than a time slice.
// measured: docs/notes/threads-and-placement.md "Cost of a barrier"
const SPIN: Duration = Duration::from_micros(200);

/// The closure that workers run, its lifetime erased.
type PoolJob = *const (dyn Fn(&PoolWorker<'_>) + Sync);

struct PoolState {
    /// Where workers meet before and after a job.
    gate: Barrier,
    /// Where workers meet inside a job.
    inner: Barrier,
    work_queues: WorkQueues,
    placement: Placement,
    job: UnsafeCell<Option<PoolJob>>,
    stop: AtomicBool,
    /// The first panic of a worker in the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the caller alone, before `gate` opens, and read by workers after it; the
// pointee is Sync.
unsafe impl Sync for PoolState {}
// SAFETY: the pointee of `job` is Sync, so that any thread may call it; nothing else is bound to a thread.
unsafe impl Send for PoolState {}

/// Bytes of stack for a thread that runs kernels. A kernel of an unoptimized build has a frame of 2 MB, since none of its hundreds of inlined
/// functions share memory; pages that are not used take none.
pub const KERNEL_STACK: usize = 4 << 20;

/// A pool of threads that live as long as it does.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    handles: Vec<JoinHandle<()>>,
}

/// One worker of a running job.
pub struct PoolWorker<'a> {
    /// 0 ≤ index < count.
    pub index: usize,
    /// Workers of the pool.
    pub count: usize,
    /// Index of its memory node in `nodes`.
    node: usize,
    nodes: &'a [Range<usize>],
    inner: &'a Barrier,
    work_queues: &'a WorkQueues,
    /// Lists of chunks that it has started in this job.
    lists: Cell<u64>,
}

impl ThreadPool {
    /// A pool of `threads` workers (at least one), the caller included, bound to no CPUs.
    pub fn new(threads: usize) -> std::io::Result<ThreadPool> {
        ThreadPool::placed(&Placement::anywhere(threads))
    }

    /// A pool with a worker per place. Where the system refuses to bind a worker, it runs unbound. The caller
    /// of [`ThreadPool::run`] is worker 0 and bound only while the job runs.
    pub fn placed(placement: &Placement) -> std::io::Result<ThreadPool> {
        // with more workers than CPUs, a spinning waiter takes the CPU from the worker it waits for
        let crowded = placement.threads() > placement.parallelism();
        let spin = if crowded { Duration::ZERO } else { SPIN };
        let shared = Arc::new(PoolState {
            gate: Barrier::new(placement.nodes(), spin, placement.parallelism()),
            inner: Barrier::new(placement.nodes(), spin, placement.parallelism()),
            work_queues: WorkQueues::new(placement.nodes().len()),
            placement: placement.clone(),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut thread_pool = ThreadPool { shared, handles: Vec::new() };
        for index in 1..placement.threads() {
            let shared = Arc::clone(&thread_pool.shared);
            let builder =
                std::thread::Builder::new().name(format!("latent-{index}")).stack_size(KERNEL_STACK);
            match builder.spawn(move || worker(&shared, index)) {
                Ok(handle) => thread_pool.handles.push(handle),
                Err(error) => {
                    // those already started wait at a gate that would never open otherwise
                    thread_pool.shared.gate.break_open();
                    return Err(error);
                }
            }
        }
        Ok(thread_pool)
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.placement.threads()
    }

    /// Their nodes and CPUs.
    pub fn placement(&self) -> &Placement {
        &self.shared.placement
    }

    /// Runs `job` on every worker and returns when all are done.
    ///
    /// # Panics
    /// With the panic of a worker, after every worker has stopped.
    pub fn run(&mut self, job: &(dyn Fn(&PoolWorker<'_>) + Sync)) {
        // SAFETY: only the lifetime changes; workers use the job between the two gates below, while `job` is
        // borrowed.
        let erased: PoolJob =
            unsafe { std::mem::transmute::<*const (dyn Fn(&PoolWorker<'_>) + Sync + '_), PoolJob>(job) };
        // SAFETY: every other worker waits at the gate, and reads `job` only after it has opened.
        unsafe { *self.shared.job.get() = Some(erased) };
        self.shared.work_queues.reset();
        let _bound = self.shared.placement.cpus(0).and_then(AffinityGuard::to);
        let _awake = AwakeGuard::new();
        self.shared.gate.wait(0);
        run_caught(&self.shared, 0, job);
        self.shared.gate.wait(0);
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            self.shared.inner.reset();
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if self.handles.len() + 1 == self.threads() {
            self.shared.gate.wait(0);
        }
        for handle in self.handles.drain(..) {
            // a worker catches the panics of its jobs, so that joining cannot fail
            let _ = handle.join();
        }
    }
}

fn worker(shared: &PoolState, index: usize) {
    let _bound = shared.placement.cpus(index).and_then(AffinityGuard::to);
    let _awake = AwakeGuard::new();
    loop {
        if !shared.gate.wait(index) || shared.stop.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the caller has set the job before it opened the gate, and keeps it alive until the next
        // gate.
        if let Some(job) = unsafe { *shared.job.get() } {
            // SAFETY: the caller's borrow of the closure lasts until this worker reaches the next gate.
            run_caught(shared, index, unsafe { &*job });
        }
        if !shared.gate.wait(index) {
            return;
        }
    }
}

/// Runs the job. A panic is kept for the caller and releases the workers that wait inside the job.
fn run_caught(shared: &PoolState, index: usize, job: &(dyn Fn(&PoolWorker<'_>) + Sync)) {
    let nodes = shared.placement.nodes();
    let worker = PoolWorker {
        index,
        count: shared.placement.threads(),
        node: nodes.iter().position(|node| node.contains(&index)).unwrap_or(0),
        nodes,
        inner: &shared.inner,
        work_queues: &shared.work_queues,
        lists: Cell::new(0),
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&worker))) {
        let mut first = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(panic);
        drop(first);
        shared.inner.break_open();
    }
}

impl PoolWorker<'_> {
    /// Waits until every worker has arrived; their writes from before are visible afterwards.
    ///
    /// # Panics
    /// When another worker has panicked: the job cannot go on.
    pub fn barrier(&self) {
        assert!(self.inner.wait(self.index), "another worker has panicked");
    }
}

#[cfg(test)]
mod tests;
