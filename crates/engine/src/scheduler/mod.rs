//! Continuous batching: many jobs over one engine. The owner of the scheduler calls it for each
//! step. Its only thread writes the prefix cache to disk, and it does not use the network.
//! `docs/scheduling.md` explains its decisions.
//!
//! * `shift.rs`: what happens to jobs whose context is full.
//! * `submit.rs`: taking jobs, or refusing them.
//! * `admission.rs`: which of the waiting jobs run; prefixes from the cache.
//! * `compose.rs`: which tokens run in a step; `pace.rs`: how many prompt tokens may run while other jobs decode; `fairness.rs`: the order of tenants.
//! * `room.rs`: blocks for the step: from the prefix cache, then from jobs of lower rank.
//! * `run.rs`: the step, and what follows for each job; `in_flight.rs`: several steps at once, over ranks; `ending.rs`: giving everything back; `guarded_listener.rs`: telling of it.
//! * `prefix_file.rs`: cached texts in files.
//! * `resume.rs`: moves jobs to another engine after a device was lost; `suspended.rs`: the jobs in between.

mod admission;
mod cancel;
mod compose;
mod ending;
mod event;
mod fairness;
mod flights;
mod guarded_listener;
mod in_flight;
mod job;
mod options;
mod pace;
mod prefix_file;
mod resume;
mod room;
mod run;
mod shift;
mod stats;
mod submit;
mod task;

pub use cancel::Canceller;
pub use event::{JobError, JobEvent, JobListener, JobUsage, Refusal};
pub use job::{FairnessKey, Job, JobChoice, JobId};
pub use options::{SchedulerClock, SchedulerOptions};
pub use resume::SuspendedJobs;
pub use stats::SchedulerStats;

use super::phase_times::PhaseTime;
use crate::cache::{Disk, PrefixChange, PrefixIndex};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::tracing;
use fairness::Fairness;
use flights::JobFlight;
use guarded_listener::GuardedListener;
use latent_backend::KV_BLOCK;
use latent_text::Tokenizer;
use pace::SchedulerPace;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use task::ScheduledJob;

/// Maximum bytes of the prefix cache that are copied for the disk, or read from it, per step.
const DISK_BYTES: usize = 8 << 20;

/// Many jobs over one engine.
///
/// ```
/// fn send<T: Send + 'static>() {}
/// send::<latent_engine::scheduler::Scheduler>();
/// send::<latent_engine::scheduler::Canceller>();
/// ```
pub struct Scheduler {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    options: SchedulerOptions,
    canceller: Canceller,
    /// In the order of their submission.
    waiting: Vec<ScheduledJob>,
    running: Vec<ScheduledJob>,
    /// Steps that have begun on the first of several ranks, oldest first.
    flights: VecDeque<JobFlight>,
    /// When the last of them ended.
    landed: Option<Instant>,
    next_id: u64,
    fairness: Fairness,
    pace: SchedulerPace,
    prefixes: PrefixIndex,
    /// Stands for the model and everything else that decides what cached rows hold.
    cache_id: u64,
    /// Sums of the statistics.
    counts: SchedulerStats,
    closed: bool,
}

impl Scheduler {
    /// A scheduler without jobs. Where the prefix cache on disk cannot be opened, there is none, and a warning says why: see
    /// [`DiskCache::check`](crate::cache::DiskCache::check).
    pub fn new(engine: Engine, tokenizer: Arc<Tokenizer>, options: SchedulerOptions) -> Scheduler {
        let cache_id = engine.cache_id();
        let open = |disk| match Disk::open(disk, cache_id) {
            Ok(disk) => Some(disk),
            Err(error) => {
                tracing::warn!(
                    "prefix cache: {}: {error}; prefixes are kept in memory only",
                    disk.path.display()
                );
                None
            }
        };
        let disk = options.disk.as_ref().filter(|_| options.prefix_cache).and_then(open);
        Scheduler {
            canceller: Canceller::default(),
            prefixes: PrefixIndex::new(engine.kv_cache(), disk),
            engine,
            tokenizer,
            options,
            waiting: Vec::new(),
            running: Vec::new(),
            flights: VecDeque::new(),
            landed: None,
            next_id: 0,
            fairness: Fairness::default(),
            pace: SchedulerPace::default(),
            cache_id,
            counts: SchedulerStats::default(),
            closed: false,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Cancels a job at the next [`step`](Self::step), which emits its final event.
    pub fn cancel(&mut self, job: JobId) {
        self.canceller.cancel(job);
    }

    /// A handle with which other threads cancel jobs.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// Closes the queue. Accepted jobs run to their end.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether it has no jobs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.flights.is_empty()
    }

    /// Runs a step: ends cancelled and overdue jobs, starts waiting jobs that fit, runs tokens and
    /// chooses the next ones, and calls `listener` with the events. Returns whether work is left.
    /// If not, the caller need not step until it submits a job.
    ///
    /// A panic in the code of one job (a processor of its logits, its sampling, `listener` at one of its events) ends that job with
    /// [`JobError::Job`]; the others go on.
    ///
    /// # Errors
    /// When the step fails as a whole. The jobs that were in it have failed, and have heard so; the others are as they were. An engine that fails again
    /// should be loaded again. Where jobs outlive their device and that is lost ([`EngineError::is_lost`]), none has failed: see
    /// [`suspend`](Self::suspend).
    pub fn step(&mut self, listener: JobListener<'_>) -> Result<bool, EngineError> {
        let listener = &mut GuardedListener::new(listener);
        self.end_cancelled(listener);
        self.end_overdue(listener);
        self.admit(listener);
        if self.is_idle() {
            // what is to be written waits for the disk now
            return Ok(self.prefixes.write_some(self.engine.kv_cache(), DISK_BYTES, true));
        }
        self.sample_late(listener);
        let plan = self.compose();
        let plan = self.make_room(plan, listener);
        let ran = self.run(&plan, listener);
        self.end_cancelled(listener);
        self.end_overdue(listener);
        let writes = self.prefixes.write_some(self.engine.kv_cache(), DISK_BYTES, false);
        ran?;
        Ok(writes || !self.is_idle())
    }

    /// The earliest deadline of a job, none where no job has one.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.running.iter().chain(&self.waiting).filter_map(|task| task.deadline).min()
    }

    /// What it does and has done.
    pub fn stats(&self) -> SchedulerStats {
        let (waiting, waiting_tokens) = self.queue();
        let cache = self.engine.kv_cache();
        let (blocks, free, cached) = (cache.blocks(), cache.free_blocks(), cache.idle_blocks());
        SchedulerStats {
            running: self.running.len(),
            in_prompt: self.running.iter().filter(|task| task.in_prompt()).count(),
            waiting,
            waiting_tokens,
            blocks,
            blocks_free: free,
            blocks_cached: cached,
            blocks_used: blocks - free - cached,
            block_tokens: KV_BLOCK,
            states: cache.state_slots(),
            states_free: cache.available_states(),
            state_bytes: cache.layout().state_bytes(),
            prefixes: self.prefixes.stats(),
            disk: self.prefixes.disk_stats(),
            ..self.counts
        }
    }

    /// Forgets all cached prefixes in memory.
    pub fn clear_prefixes(&mut self) {
        self.prefixes.clear();
    }

    /// Notes from now on which blocks come into the prefix cache in memory and leave it, for [`take_prefix_changes`](Self::take_prefix_changes);
    /// what is there already comes first.
    pub fn watch_prefixes(&mut self) {
        self.prefixes.watch();
    }

    /// Changes of the in-memory prefix cache since the last call, in order. Call it often: pending
    /// changes are kept in memory.
    pub fn take_prefix_changes(&mut self) -> Vec<PrefixChange> {
        self.prefixes.take_changes()
    }

    /// Waits until everything that is to be written to the prefix cache on disk is there.
    pub fn flush_disk(&mut self) {
        while self.prefixes.write_some(self.engine.kv_cache(), DISK_BYTES, true) {}
        self.prefixes.flush();
    }

    /// Ends all jobs without further events, and gives the engine back.
    pub fn into_engine(self) -> Engine {
        self.engine
    }
}

impl Scheduler {
    /// Starts to take the time of each phase of the steps to come.
    pub fn start_phase_times(&mut self) {
        self.engine.start_phase_times();
    }

    /// Stops, and returns the times since the start.
    pub fn take_phase_times(&mut self) -> Vec<PhaseTime> {
        self.engine.take_phase_times()
    }
}
