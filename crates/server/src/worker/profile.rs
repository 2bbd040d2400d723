//! What each phase of the engine's steps takes. The clocks cost a little, so they run all the time only while somebody watches, otherwise
//! for a window now and then: who looks first sees the steps that have run already.

use latent_engine::PhaseTime;
use latent_engine::scheduler::{Scheduler, SchedulerStats};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the clocks run on after the last look.
const ATTENTION: Duration = Duration::from_secs(4);

/// How long times are summed.
const WINDOW: Duration = Duration::from_secs(1);

/// The age at which a profile is replaced while steps run and no client polls.
const REFRESH: Duration = Duration::from_secs(20);

/// The last profile.
#[derive(Default)]
pub(crate) struct WatchedProfile {
    inner: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    /// When somebody looked at the profile.
    looked: Option<Instant>,
    /// When it was measured.
    published: Option<Instant>,
    profile: WorkerProfile,
}

/// Means over some steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerProfile {
    pub(crate) steps: u64,
    pub(crate) rows: u64,
    pub(crate) time: Duration,
    pub(crate) phases: Vec<PhaseTime>,
}

impl WatchedProfile {
    /// The last profile. From now on, for a while, there are new ones.
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

/// Clocks that run.
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
    /// A step begins.
    pub(super) fn before(&mut self, scheduler: &mut Scheduler, watched: &WatchedProfile) {
        if self.running.is_none() && watched.is_wanted() {
            scheduler.start_phase_times();
            self.running = Some(StepClock { since: Instant::now(), before: scheduler.stats(), rows: 0 });
        }
    }

    /// It has ended; `idle`: for a while it was the last.
    pub(super) fn after(&mut self, scheduler: &mut Scheduler, watched: &WatchedProfile, idle: bool) {
        let Some(running) = &mut self.running else { return };
        let stats = scheduler.stats();
        running.rows += (stats.last_decoding + stats.last_prompt_tokens) as u64;
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
