//! Live statistics of the engine, for status endpoints.

use latent_engine::scheduler::SchedulerStats;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The scheduler's statistics after its last step.
#[derive(Default)]
pub(crate) struct LiveFigures {
    inner: Mutex<WorkerFigures>,
}

#[derive(Default)]
struct WorkerFigures {
    stats: SchedulerStats,
    /// Sums over earlier schedulers, which ended in faults. Prometheus counters must not decrease.
    past: SchedulerStats,
    /// Number of reloads after faults.
    reloads: u64,
    rates: TokenRates,
    /// Start of the current window: time, prompt tokens, generated tokens.
    since: Option<(Instant, u64, u64)>,
    measured: Option<Instant>,
}

/// Tokens per second, over the last second or the last step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenRates {
    pub(crate) prompt: f64,
    pub(crate) completion: f64,
}

/// The window over which rates are averaged.
const WINDOW: Duration = Duration::from_secs(1);

impl LiveFigures {
    pub(super) fn publish(&self, stats: SchedulerStats) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (start, tokens_in, tokens_out) = match inner.since {
            Some(since) if since.1 <= stats.tokens_in && since.2 <= stats.tokens_out => since,
            // The first step, or the first of a new scheduler, whose sums begin at 0 again.
            _ => (now - stats.last_step_time, 0, 0),
        };
        let seconds = (now - start).as_secs_f64();
        // The first step after idle time is published at once: a short answer would otherwise end
        // without a rate.
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

    /// The engine wakes from idling. A new window begins, so that idle time does not lower the
    /// rates.
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

    /// The scheduler's statistics, with the sums of earlier schedulers.
    pub(crate) fn stats(&self) -> SchedulerStats {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.stats.after(&inner.past)
    }

    pub(crate) fn reloads(&self) -> u64 {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).reloads
    }

    /// Token rates; 0 while the engine is idle.
    pub(crate) fn rates(&self) -> TokenRates {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = inner.stats.running == 0 && inner.stats.waiting == 0;
        if idle { TokenRates::default() } else { inner.rates }
    }
}
