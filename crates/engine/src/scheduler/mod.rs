//! Continuous batching: many jobs over one engine. The owner of the scheduler calls
//! [`Scheduler::step`] for each step. Its only thread writes the prefix cache to disk, and it does
//! not use the network. `docs/scheduling.md` explains its decisions.
//!
//! * `submit.rs`: accepts or refuses jobs.
//! * `admission.rs`: selects the waiting jobs that start, with prefixes from the cache.
//! * `compose.rs`: selects the tokens of a step. `pace.rs`: the number of prompt tokens that may
//!   run while other jobs decode. `fairness.rs`: the order of tenants.
//! * `room.rs`: blocks for the step, from the prefix cache, then from jobs of lower rank.
//! * `run.rs`: runs the step and updates each job. `in_flight.rs`: pipelined steps over several
//!   ranks. `ending.rs`: releases the resources of ended jobs. `guarded_listener.rs`: emits events.
//! * `shift.rs`: ends or shifts jobs whose context is full.
//! * `prefix_file.rs`: saves cached prefixes to files and restores them.
//! * `resume.rs`: moves jobs to another engine after a device was lost.

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

/// Maximum bytes of the prefix cache that are copied for the disk, or read from it, per step while
/// jobs decode.
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
    waiting: Vec<ScheduledJob>,
    running: Vec<ScheduledJob>,
    /// Steps that have begun on the first of several ranks, oldest first.
    flights: VecDeque<JobFlight>,
    /// When the last flight ended.
    landed: Option<Instant>,
    next_id: u64,
    fairness: Fairness,
    pace: SchedulerPace,
    prefixes: PrefixIndex,
    /// Identifies the model and all settings that cached rows depend on.
    cache_id: u64,
    /// The running totals. [`Scheduler::stats`] adds the current state.
    counts: SchedulerStats,
    closed: bool,
}

impl Scheduler {
    /// A scheduler without jobs. If the prefix cache on disk cannot be opened, the scheduler logs a
    /// warning and keeps prefixes in memory only. Call
    /// [`DiskCache::check`](crate::cache::DiskCache::check) first to report such an error.
    pub fn new(engine: Engine, tokenizer: Arc<Tokenizer>, options: SchedulerOptions) -> Scheduler {
        let cache_id = engine.cache_id();
        let open = |disk| match Disk::open(disk, cache_id) {
            Ok(disk) => Some(disk),
            Err(error) => {
                tracing::warn!(
                    "prefix cache: {}: {error}; prefixes are cached in memory only",
                    disk.path.display()
                );
                None
            }
        };
        // A server must not fail to start because of its cache.
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

    /// Whether the scheduler has no jobs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.flights.is_empty()
    }

    /// Runs a step: ends cancelled and overdue jobs, starts waiting jobs that fit, runs tokens and
    /// chooses the next ones, and calls `listener` with the events. Returns whether work is left.
    /// If not, the caller need not step until it submits a job.
    ///
    /// A panic in the code of one job (a logits processor, its sampling, `listener` at one of its
    /// events) ends that job with [`JobError::Job`]. Other jobs continue.
    ///
    /// # Errors
    /// When the step fails as a whole. The jobs of the step have failed and their final events were
    /// emitted; other jobs are unchanged. If an engine fails repeatedly, load the model again. If
    /// jobs outlive their device and the device is lost ([`EngineError::is_lost`]), no job has
    /// failed: call [`suspend`](Self::suspend).
    pub fn step(&mut self, listener: JobListener<'_>) -> Result<bool, EngineError> {
        let listener = &mut GuardedListener::new(listener);
        // Jobs end before others are admitted, which can then use their blocks.
        self.end_cancelled(listener);
        self.end_overdue(listener);
        self.admit(listener);
        if self.is_idle() {
            // No job is delayed, so wait until the writer accepts queued blocks.
            return Ok(self.prefixes.write_some(self.engine.kv_cache(), DISK_BYTES, true));
        }
        // Before the step is composed, so that a token which is chosen now runs in this step.
        self.sample_late(listener);
        let plan = self.compose();
        let plan = self.make_room(plan, listener);
        let ran = self.run(&plan, listener);
        // `Canceller::cancel` promises that a job which is cancelled during a step ends with it.
        self.end_cancelled(listener);
        self.end_overdue(listener);
        let writes = self.prefixes.write_some(self.engine.kv_cache(), DISK_BYTES, false);
        // An error is returned only here: cancelled jobs end after a failed step too.
        ran?;
        // With blocks left to write, the caller must step again even without jobs.
        Ok(writes || !self.is_idle())
    }

    /// The earliest deadline of all jobs. `None` if no job has a deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.running.iter().chain(&self.waiting).filter_map(|task| task.deadline).min()
    }

    /// Current state and running totals.
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

    /// Evicts all cached prefixes from memory.
    pub fn clear_prefixes(&mut self) {
        self.prefixes.clear();
    }

    /// Starts to record which blocks enter and leave the in-memory prefix cache, for
    /// [`take_prefix_changes`](Self::take_prefix_changes). The first entries are the blocks that
    /// are cached already.
    pub fn watch_prefixes(&mut self) {
        self.prefixes.watch();
    }

    /// Changes of the in-memory prefix cache since the last call, in order. Call it often: pending
    /// changes are kept in memory.
    pub fn take_prefix_changes(&mut self) -> Vec<PrefixChange> {
        self.prefixes.take_changes()
    }

    /// Waits until all queued blocks are written to the prefix cache on disk.
    pub fn flush_disk(&mut self) {
        while self.prefixes.write_some(self.engine.kv_cache(), DISK_BYTES, true) {}
        self.prefixes.flush();
    }

    /// Drops all jobs without further events and returns the engine.
    pub fn into_engine(self) -> Engine {
        self.engine
    }
}

impl Scheduler {
    /// Starts to time each phase of later steps.
    pub fn start_phase_times(&mut self) {
        self.engine.start_phase_times();
    }

    /// Stops timing and returns the times since [`start_phase_times`](Self::start_phase_times).
    pub fn take_phase_times(&mut self) -> Vec<PhaseTime> {
        self.engine.take_phase_times()
    }
}
