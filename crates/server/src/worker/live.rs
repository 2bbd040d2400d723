//! The current state of the engine, for status endpoints.

use latent_engine::scheduler::SchedulerStats;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The scheduler's figures after its last step.
#[derive(Default)]
pub(crate) struct LiveFigures {
    inner: Mutex<WorkerFigures>,
}

#[derive(Default)]
struct WorkerFigures {
    stats: SchedulerStats,
    /// Sums of the schedulers before this one, after faults.
    past: SchedulerStats,
    /// Faults after which the model was loaded again.
    reloads: u64,
    rates: TokenRates,
    /// When and at which sums the rates began to be counted.
    since: Option<(Instant, u64, u64)>,
    measured: Option<Instant>,
}

/// Tokens per second, over the last second or the last step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenRates {
    pub(crate) prompt: f64,
    pub(crate) completion: f64,
}

/// How long rates are counted over.
const WINDOW: Duration = Duration::from_secs(1);

impl LiveFigures {
    pub(super) fn publish(&self, stats: SchedulerStats) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (start, tokens_in, tokens_out) = match inner.since {
            Some(since) if since.1 <= stats.tokens_in && since.2 <= stats.tokens_out => since,
            // the first, or of another scheduler
            _ => (now - stats.last_step_time, 0, 0),
        };
        let seconds = (now - start).as_secs_f64();
        if now - start >= WINDOW || inner.measured.is_none_or(|at| now - at > WINDOW) {
            let rate = |tokens: u64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
            inner.rates = TokenRates {
                prompt: rate(stats.tokens_in - tokens_in),
                completion: rate(stats.tokens_out - tokens_out),
            };
            inner.measured = Some(now);
            inner.since = Some((now, stats.tokens_in, stats.tokens_out));
        } else {
            inner.since = Some((start, tokens_in, tokens_out));
        }
        inner.stats = stats;
    }

    /// A burst begins after the engine has slept: rates count from here.
    pub(super) fn wake(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens_in, tokens_out) = (inner.stats.tokens_in, inner.stats.tokens_out);
        inner.since = Some((Instant::now(), tokens_in, tokens_out));
        inner.measured = None;
    }

    pub(super) fn reloaded(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.reloads += 1;
        inner.past = inner.stats.after(&inner.past);
        inner.stats = SchedulerStats::default();
    }

    /// The scheduler's figures, with the sums of those before it.
    pub(crate) fn stats(&self) -> SchedulerStats {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.stats.after(&inner.past)
    }

    pub(crate) fn reloads(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).reloads
    }

    /// Rates; 0 when the engine sleeps.
    pub(crate) fn rates(&self) -> TokenRates {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = inner.stats.running == 0 && inner.stats.waiting == 0;
        if idle { TokenRates::default() } else { inner.rates }
    }
}
