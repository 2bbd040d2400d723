//! Profile of the phases of a step.
//!
//! Reading clocks in every phase has a cost, so they run continuously only while a client polls.
//! Otherwise they run for one window every 20 seconds, so that the first poll already shows a
//! profile.

use latent_engine::PhaseTime;
use latent_engine::scheduler::{Scheduler, SchedulerStats};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the clocks keep running after the last poll.
const ATTENTION: Duration = Duration::from_secs(4);

/// The window over which times are summed.
const WINDOW: Duration = Duration::from_secs(1);

/// The age at which a profile is replaced while steps run and no client polls.
const REFRESH: Duration = Duration::from_secs(20);

/// The last profile, and when clients polled it.
#[derive(Default)]
pub(crate) struct WatchedProfile {
    inner: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    /// When a client last polled the profile.
    looked: Option<Instant>,
    /// When the profile was measured.
    published: Option<Instant>,
    profile: WorkerProfile,
}

/// Sums over the steps of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerProfile {
    pub(crate) steps: u64,
    pub(crate) rows: u64,
    pub(crate) time: Duration,
    pub(crate) phases: Vec<PhaseTime>,
}

impl WatchedProfile {
    /// Returns the last profile and keeps the clocks running for [`ATTENTION`].
    pub(crate) fn look(&self) -> WorkerProfile {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.looked = Some(Instant::now());
        inner.profile.clone()
    }

    fn is_wanted(&self) -> bool {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.looked.is_some_and(|at| at.elapsed() < ATTENTION)
            || inner.published.is_none_or(|at| at.elapsed() >= REFRESH)
    }

    fn publish(&self, profile: WorkerProfile) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.profile = profile;
        inner.published = Some(Instant::now());
    }
}

/// The clocks of the worker's thread, if they run.
#[derive(Default)]
pub(super) struct Clocks {
    running: Option<StepClock>,
}

struct StepClock {
    since: Instant,
    before: SchedulerStats,
    rows: u64,
}

impl Clocks {
    /// Called before a step.
    pub(super) fn before(&mut self, scheduler: &mut Scheduler, watched: &WatchedProfile) {
        if self.running.is_none() && watched.is_wanted() {
            scheduler.start_phase_times();
            self.running = Some(StepClock { since: Instant::now(), before: scheduler.stats(), rows: 0 });
        }
    }

    /// Called after a step. `idle`: no step follows immediately.
    pub(super) fn after(&mut self, scheduler: &mut Scheduler, watched: &WatchedProfile, idle: bool) {
        let Some(running) = &mut self.running else { return };
        let stats = scheduler.stats();
        running.rows += (stats.last_decoding + stats.last_prompt_tokens) as u64;
        // An idle engine closes the window early: the pause would count as part of it, and no later
        // step would publish the last ones.
        if running.since.elapsed() < WINDOW && watched.is_wanted() && !idle {
            return;
        }
        let phases = scheduler.take_phase_times();
        let steps = stats.steps.saturating_sub(running.before.steps);
        let time = stats.step_time.saturating_sub(running.before.step_time);
        if steps > 0 {
            watched.publish(WorkerProfile { steps, rows: running.rows, time, phases });
        }
        self.running = None;
    }
}
