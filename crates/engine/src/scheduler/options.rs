//! Options of the scheduler.

use crate::cache::DiskCache;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A source of time. Tests replace it.
pub type SchedulerClock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// How jobs are scheduled.
#[derive(Clone)]
pub struct SchedulerOptions {
    /// Maximum number of running jobs.
    pub max_running: usize,
    /// Maximum number of waiting jobs.
    pub max_waiting: usize,
    /// Maximum number of prompt tokens of waiting jobs. An empty queue accepts a prompt of any
    /// length.
    pub max_waiting_tokens: usize,
    /// Maximum time of a step while jobs decode, as a multiple of a step without prompts. It bounds
    /// the prompt tokens of the step.
    pub prompt_slowdown: f64,
    /// Minimum prompt tokens of a step, however long it takes, so that prompts always progress.
    pub min_chunk: usize,
    /// Whether blocks of finished jobs stay cached for later jobs with the same prefix. They are
    /// evicted when other jobs need them.
    pub prefix_cache: bool,
    /// The prefix cache on disk, which outlives the process.
    pub disk: Option<DiskCache>,
    /// Whether jobs outlive a lost device, so that
    /// [`Scheduler::suspend`](super::Scheduler::suspend) can move them to another.
    pub outlives_device: bool,
    /// The source of time.
    pub clock: SchedulerClock,
}

impl Default for SchedulerOptions {
    fn default() -> SchedulerOptions {
        SchedulerOptions {
            max_running: 64,
            max_waiting: 512,
            max_waiting_tokens: 1 << 20,
            // With 2.5, the measured median time between tokens was 3.0 times (one sequence) and
            // 3.3 times (four sequences) that of steps without prompts.
            prompt_slowdown: 2.2,
            min_chunk: 2,
            prefix_cache: true,
            disk: None,
            outlives_device: false,
            clock: Arc::new(Instant::now),
        }
    }
}

impl std::fmt::Debug for SchedulerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SchedulerOptions { max_running, max_waiting, max_waiting_tokens, disk, .. } = self;
        f.debug_struct("SchedulerOptions")
            .field("max_running", max_running)
            .field("max_waiting", max_waiting)
            .field("max_waiting_tokens", max_waiting_tokens)
            .field("prefix_cache", &self.prefix_cache)
            .field("disk", disk)
            .finish_non_exhaustive()
    }
}

/// Minimum and maximum of the retry time in a refusal.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));
