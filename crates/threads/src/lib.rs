//! A persistent thread pool that runs every phase of every step.
//!
//! The caller is worker 0 and computes too, so that a pool of one starts no thread. Between phases
//! workers meet at a [barrier](PoolWorker::barrier). Each worker computes its static
//! [share](PoolWorker::share) of dense work from its index, without synchronization. Work of uneven
//! cost is divided into chunks and taken from [work queues](PoolWorker::for_each_chunk).
//!
//! While other programs use the CPUs, fewer workers are often faster. [`ThreadPool::begin_step`]
//! measures the steps and chooses the number of workers.
//!
//! On a machine with several memory nodes, the workers of a node have consecutive indices
//! ([`Placement`]), and so do their shares of a weight's outputs. The worker that packs a weight
//! row also reads it, and the system places memory on the node that writes it first.
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
mod run_delay;
mod share;
mod sync;
mod team;
mod team_size;
mod topology;
mod work_queue;

pub use placement::{MAX_THREADS, PinPolicy, Placement};
pub use priority::lower_priority;
pub use topology::{Node, Topology, parallelism, threads_for};
pub use work_queue::WorkChunk;

use affinity::AffinityGuard;
use awake::AwakeGuard;
use barrier::Barrier;
use run_delay::RunDelays;
use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};
use team::{IdleWorker, TeamCommand, WorkerTeam};
use team_size::TeamSize;
use work_queue::WorkQueues;

/// How long a waiter spins before it parks: several times the cost of parking and waking (30 µs on
/// a virtual machine), far less than a time slice.
// measured: docs/notes/threads-and-placement.md "Cost of a barrier"
const SPIN: Duration = Duration::from_micros(200);

/// The closure that workers run, its lifetime erased.
#[derive(Clone, Copy)]
struct PoolJob(*const (dyn Fn(&PoolWorker<'_>) + Sync));

// SAFETY: the pointee is Sync, so that any thread may call it.
unsafe impl Send for PoolJob {}
// SAFETY: as above.
unsafe impl Sync for PoolJob {}

struct PoolState {
    placement: Placement,
    /// Where each worker sleeps while it is not in the team. The caller's entry is unused.
    idle: Box<[IdleWorker<PoolJob>]>,
    delays: RunDelays,
    /// The first panic of a worker in the current job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Bytes of stack for a thread that runs kernels. A kernel of an unoptimized build has a frame of 2
/// MB, since its hundreds of inlined functions do not share stack slots. Unused pages take no
/// memory.
pub const KERNEL_STACK: usize = 4 << 20;

/// Kinds of steps for which [`ThreadPool::begin_step`] chooses the number of workers separately.
pub const STEP_KINDS: usize = 3;

/// A pool of threads that live as long as it does.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    team: Arc<WorkerTeam<PoolJob>>,
    handles: Vec<JoinHandle<()>>,
    sizes: [TeamSize; STEP_KINDS],
    step: StepRecord,
}

/// The current step, for [`ThreadPool::begin_step`].
#[derive(Default)]
struct StepRecord {
    kind: usize,
    rows: usize,
    /// Time spent in jobs since the step began.
    elapsed: Duration,
    /// The thread that ran the last job, as worker 0.
    caller: Option<ThreadId>,
    /// The kind of steps that is measured, and the delay counters of the members when its window
    /// began.
    window: Option<(usize, Vec<Option<Duration>>)>,
}

/// One worker of a running job.
pub struct PoolWorker<'a> {
    /// 0 ≤ index < count.
    pub index: usize,
    /// Workers of the job.
    pub count: usize,
    /// Index of the worker's memory node in `nodes`.
    node: usize,
    nodes: &'a [Range<usize>],
    inner: &'a Barrier,
    work_queues: &'a WorkQueues,
    /// Number of chunk lists that this worker has started in this job.
    lists: Cell<u64>,
}

impl ThreadPool {
    /// A pool of `threads` workers (at least one), the caller included, bound to no CPUs.
    pub fn new(threads: usize) -> std::io::Result<ThreadPool> {
        ThreadPool::placed(&Placement::anywhere(threads))
    }

    /// A pool with the workers of a placement. If the system refuses to bind a worker, it runs
    /// unbound. The caller of [`ThreadPool::run`] is worker 0 and bound only while the job runs.
    pub fn placed(placement: &Placement) -> std::io::Result<ThreadPool> {
        let threads = placement.threads();
        let shared = Arc::new(PoolState {
            placement: placement.clone(),
            idle: (0..threads).map(|_| IdleWorker::new(placement.parallelism())).collect(),
            delays: RunDelays::new(threads),
            panic: Mutex::new(None),
        });
        let team = Arc::new(shared.team(&Vec::from_iter(0..threads)));
        let mut handles = Vec::new();
        for index in 1..threads {
            let (shared, own) = (Arc::clone(&shared), Arc::clone(&team));
            let builder =
                std::thread::Builder::new().name(format!("latent-{index}")).stack_size(KERNEL_STACK);
            match builder.spawn(move || worker(&shared, index, own)) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    // The threads already started wait at a gate that never opens without the
                    // missing ones.
                    team.gate.break_open();
                    for handle in handles {
                        // A worker that has run no job cannot have panicked.
                        let _ = handle.join();
                    }
                    return Err(error);
                }
            }
        }
        let sizes = std::array::from_fn(|_| TeamSize::new(threads));
        Ok(ThreadPool { shared, team, handles, sizes, step: StepRecord::default() })
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.placement.threads()
    }

    /// Memory nodes and CPUs of the workers.
    pub fn placement(&self) -> &Placement {
        &self.shared.placement
    }

    /// Runs `job` on every worker of the current team, and returns when all are done.
    ///
    /// # Panics
    /// With the panic of a worker, after every worker has stopped.
    pub fn run(&mut self, job: &(dyn Fn(&PoolWorker<'_>) + Sync)) {
        // SAFETY: only the lifetime changes. Workers use the job only between the two gates below,
        // while `job` is borrowed: a panic in it is caught, so this function does not return before
        // the second gate.
        let erased = PoolJob(unsafe {
            std::mem::transmute::<
                *const (dyn Fn(&PoolWorker<'_>) + Sync + '_),
                *const (dyn Fn(&PoolWorker<'_>) + Sync),
            >(job)
        });
        // The gate publishes the reset queues and the command to the members.
        self.team.work_queues.reset();
        // SAFETY: every other member waits at the gate, and reads the command only after it has
        // opened.
        unsafe { self.team.set_command(TeamCommand::Run(erased)) };
        let _bound = self.shared.placement.cpus(0).and_then(AffinityGuard::to);
        let _awake = AwakeGuard::new();
        let start = Instant::now();
        self.team.gate.wait(0);
        run_caught(&self.shared, &self.team, 0, job);
        self.team.gate.wait(0);
        self.step.elapsed += start.elapsed();
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            // All members have passed the second gate, so the inner barrier has no waiters and can
            // be restored for the next job.
            self.team.inner.reset();
            resume_unwind(panic);
        }
    }

    /// Begins a step of `rows` rows, which includes the jobs until the next call, and ends the
    /// previous step. Chooses the number of workers by the measured times of steps of this `kind`
    /// (less than [`STEP_KINDS`]). Results of jobs must not depend on the number of workers.
    pub fn begin_step(&mut self, kind: usize, rows: usize) {
        if self.threads() == 1 {
            return;
        }
        // The counter of a thread is found through `/proc/thread-self`, so a new caller must open
        // its own.
        let caller = std::thread::current().id();
        if self.step.caller.replace(caller) != Some(caller) {
            self.shared.delays.register(0);
            self.step.window = None;
        }
        let elapsed = std::mem::take(&mut self.step.elapsed);
        if elapsed > Duration::ZERO {
            self.sizes[self.step.kind].record(self.step.rows, elapsed);
        }
        (self.step.kind, self.step.rows) = (kind, rows);
        if self.sizes[kind].window_is_over() {
            // Delay counters also count steps of other kinds, so a window in which another kind ran
            // has no delays.
            let before = self.step.window.take().filter(|(of, _)| *of == kind).map(|(_, before)| before);
            let delays = before.map_or_else(Vec::new, |before| {
                let since = |(before, now): (&Option<Duration>, Option<Duration>)| {
                    before.zip(now).map_or(Duration::ZERO, |(before, now)| now.saturating_sub(before))
                };
                before.iter().zip(self.delays()).map(since).collect()
            });
            self.sizes[kind].end_window(&delays);
        }
        if *self.sizes[kind].members() != *self.team.members {
            let members = self.sizes[kind].members().to_vec();
            self.regroup(&members);
        }
        if self.step.window.as_ref().is_none_or(|(of, _)| *of != kind) {
            self.step.window = Some((kind, self.delays()));
        }
    }

    /// Runs jobs on all workers until the next [`begin_step`](Self::begin_step), for example while
    /// profiling.
    pub fn use_all_workers(&mut self) {
        self.step = StepRecord::default();
        if self.active() < self.threads() {
            self.regroup(&Vec::from_iter(0..self.threads()));
        }
    }

    /// Number of workers of the current team, the caller included. The others sleep.
    pub fn active(&self) -> usize {
        self.team.members.len()
    }

    /// The delay counters of the members.
    fn delays(&self) -> Vec<Option<Duration>> {
        self.team.members.iter().map(|&member| self.shared.delays.of(member)).collect()
    }

    /// Makes these workers the team. They are ascending, and the first is 0.
    fn regroup(&mut self, members: &[usize]) {
        let next = Arc::new(self.shared.team(members));
        // SAFETY: every other member waits at the gate.
        unsafe { self.team.set_command(TeamCommand::Regroup(Arc::clone(&next))) };
        // After the first gate the members read the command, and at the second gate all have read
        // it: the old team may then be dropped.
        self.team.gate.wait(0);
        self.team.gate.wait(0);
        for &member in next.members.iter().filter(|&&member| self.team.position(member).is_none()) {
            self.shared.idle[member].wake(Some(Arc::clone(&next)));
        }
        self.team = next;
        self.step.window = None;
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: every other member waits at the gate.
        unsafe { self.team.set_command(TeamCommand::Stop) };
        self.team.gate.wait(0);
        for worker in (0..self.threads()).filter(|&worker| self.team.position(worker).is_none()) {
            self.shared.idle[worker].wake(None);
        }
        for handle in self.handles.drain(..) {
            // A worker catches the panics of its jobs, so joining cannot fail.
            let _ = handle.join();
        }
    }
}

impl PoolState {
    fn team(&self, members: &[usize]) -> WorkerTeam<PoolJob> {
        // With more workers than CPUs, a spinning waiter takes the CPU from a worker that it waits
        // for.
        let crowded = members.len() > self.placement.parallelism();
        let spin = if crowded { Duration::ZERO } else { SPIN };
        WorkerTeam::new(members, self.placement.nodes(), spin, self.placement.parallelism())
    }
}

fn worker(shared: &PoolState, index: usize, team: Arc<WorkerTeam<PoolJob>>) {
    let _bound = shared.placement.cpus(index).and_then(AffinityGuard::to);
    let _awake = AwakeGuard::new();
    shared.delays.register(index);
    team::work(&shared.idle, index, team, |team, position, PoolJob(job)| {
        // SAFETY: the caller's borrow of the closure lasts until this worker has returned from it
        // and reached the gate.
        run_caught(shared, team, position, unsafe { &*job });
    });
}

/// Runs the job. A panic is stored for the caller, and releases the workers that wait inside the
/// job.
// Without catching it, this worker would never reach the second gate, and the caller would wait
// forever.
fn run_caught(
    shared: &PoolState,
    team: &WorkerTeam<PoolJob>,
    position: usize,
    job: &(dyn Fn(&PoolWorker<'_>) + Sync),
) {
    let worker = PoolWorker {
        index: position,
        count: team.members.len(),
        node: team.nodes.iter().position(|node| node.contains(&position)).unwrap_or(0),
        nodes: &team.nodes,
        inner: &team.inner,
        work_queues: &team.work_queues,
        lists: Cell::new(0),
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&worker))) {
        let mut first = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(panic);
        drop(first);
        team.inner.break_open();
    }
}

impl PoolWorker<'_> {
    /// Waits until every worker has arrived. Their earlier writes are visible afterwards.
    ///
    /// # Panics
    /// When another worker has panicked, since the job cannot continue.
    pub fn barrier(&self) {
        assert!(self.inner.wait(self.index), "another worker has panicked");
    }
}

#[cfg(test)]
mod tests;
