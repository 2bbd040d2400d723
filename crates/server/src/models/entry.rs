//! One model of the server: whether it is loaded, and who uses it.

use super::events::{ModelChange, ModelEvents};
use crate::worker::Engineering;
use latent_engine::scheduler::SchedulerStats;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whether a model is loaded.
pub(crate) enum Phase {
    Unloaded,
    /// None: it waits until there is room.
    Loading(Option<Arc<Engineering>>),
    Loaded(Arc<Engineering>),
    /// Its users end; then its thread ends.
    Unloading(Arc<Engineering>),
    Failed {
        problem: String,
        at: Instant,
    },
}

/// What has become of a model since the server started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) loads: u64,
    pub(crate) failures: u64,
    pub(crate) unloads: u64,
    pub(crate) load_time: Duration,
}

/// One model of the server.
pub(crate) struct Entry {
    name: String,
    pub(super) phase: Phase,
    /// The status of the last event.
    reported: &'static str,
    /// Whether the list of models no longer has it.
    pub(super) removed: bool,
    /// Idle time after which it is unloaded, if it has its own; none inside: never.
    idle: Option<Option<Duration>>,
    /// Requests that use it.
    pub(super) users: usize,
    /// Requests that wait for it.
    pub(super) waiting: usize,
    /// When a request last began or ended to use it.
    pub(super) used: Instant,
    /// When it is unloaded, if it stays idle.
    pub(super) expires: Option<Instant>,
    /// How long the last request wants it to be kept: none if for ever.
    pub(super) keep: Option<Option<Duration>>,
    pub(super) counts: Counts,
    /// Sums of its workers that have ended.
    past: SchedulerStats,
    /// Reloads of its workers that have ended.
    past_reloads: u64,
}

impl Entry {
    pub(super) fn new(name: &str, idle: Option<Option<Duration>>) -> Entry {
        Entry {
            name: name.to_owned(),
            phase: Phase::Unloaded,
            reported: "unloaded",
            removed: false,
            idle,
            users: 0,
            waiting: 0,
            used: Instant::now(),
            expires: None,
            keep: None,
            counts: Counts::default(),
            past: SchedulerStats::default(),
            past_reloads: 0,
        }
    }

    /// The name that the list of models has.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its status: unloaded, loading, loaded, unloading or failed.
    pub(super) fn label(&self) -> &'static str {
        match &self.phase {
            Phase::Unloaded => "unloaded",
            Phase::Loading(_) => "loading",
            Phase::Loaded(_) => "loaded",
            Phase::Unloading(_) => "unloading",
            Phase::Failed { .. } => "failed",
        }
    }

    /// Reports its status if that has changed.
    pub(super) fn report(&mut self, events: &ModelEvents) {
        let state = self.label();
        if std::mem::replace(&mut self.reported, state) == state || self.removed {
            return;
        }
        let problem = match &self.phase {
            Phase::Failed { problem, .. } => Some(problem.clone()),
            _ => None,
        };
        events.send(&self.name, ModelChange::Status { state, problem });
    }

    /// Whether it is in memory, or about to be.
    pub(super) fn is_in_use(&self) -> bool {
        !matches!(self.phase, Phase::Unloaded | Phase::Failed { .. }) || self.users > 0 || self.waiting > 0
    }

    /// Its worker, if it has one.
    pub(super) fn engineering(&self) -> Option<&Arc<Engineering>> {
        match &self.phase {
            Phase::Loading(engineering) => engineering.as_ref(),
            Phase::Loaded(engineering) | Phase::Unloading(engineering) => Some(engineering),
            Phase::Unloaded | Phase::Failed { .. } => None,
        }
    }

    /// What its schedulers have done since the server started; the present state is that of the one that it has.
    pub(super) fn stats(&self) -> SchedulerStats {
        let now = self.engineering().map(|engineering| engineering.live.stats()).unwrap_or_default();
        now.after(&self.past)
    }

    /// Faults after which it was loaded again, since the server started.
    pub(super) fn reloads(&self) -> u64 {
        self.past_reloads + self.engineering().map_or(0, |engineering| engineering.live.reloads())
    }

    pub(super) fn is_loaded(&self) -> bool {
        matches!(self.phase, Phase::Loaded(_))
    }

    /// It is loaded, which took `took`; `idle`: idle time after which it is unloaded.
    pub(super) fn loaded(&mut self, time: Duration, idle: Option<Duration>) {
        if let Phase::Loading(Some(engineering)) = &self.phase {
            self.phase = Phase::Loaded(Arc::clone(engineering));
        }
        self.used = Instant::now();
        // a waiting request comes first and clears this
        let idle = self.idle.unwrap_or(idle);
        let keep = if self.waiting == 0 { self.keep.take().unwrap_or(idle) } else { idle };
        self.expires = keep.and_then(|keep| self.used.checked_add(keep));
        self.counts.loads += 1;
        self.counts.load_time += time;
    }

    /// It could not be loaded.
    pub(super) fn failed(&mut self, problem: String) {
        self.phase = Phase::Failed { problem, at: Instant::now() };
        self.counts.failures += 1;
    }

    /// Lets its users end, and then its worker.
    pub(super) fn unload(&mut self) {
        if let Phase::Loaded(engineering) = &self.phase {
            let engineering = Arc::clone(engineering);
            if self.users == 0 {
                engineering.drain();
            }
            self.phase = Phase::Unloading(engineering);
            self.expires = None;
        }
    }

    /// Lets all that it has been asked for end, and then its worker. One that is being loaded cannot be stopped and comes to its end first.
    pub(super) fn unload_soon(&mut self) {
        match &self.phase {
            Phase::Loaded(_) if self.waiting == 0 => self.unload(),
            Phase::Loaded(_) | Phase::Loading(_) => self.keep = Some(Some(Duration::ZERO)),
            Phase::Unloaded | Phase::Unloading(_) | Phase::Failed { .. } => {}
        }
    }

    /// It is wanted, whatever was said or has failed before.
    pub(super) fn retry(&mut self) {
        self.keep = None;
        if let Phase::Failed { .. } = self.phase {
            self.phase = Phase::Unloaded;
        }
    }

    /// A request waits for it no longer.
    pub(super) fn stop_waiting(&mut self) {
        self.waiting -= 1;
        if self.waiting == 0
            && self.users == 0
            && self.is_loaded()
            && let Some(keep) = self.keep.take()
        {
            self.expires = keep.and_then(|keep| self.used.checked_add(keep));
        }
    }

    /// A request has ended; `idle`: idle time after which the model is unloaded.
    pub(super) fn release(&mut self, idle: Option<Duration>) {
        self.users -= 1;
        self.used = Instant::now();
        if self.users > 0 {
            return;
        }
        let keep = self.keep.take().unwrap_or(self.idle.unwrap_or(idle));
        match &self.phase {
            Phase::Unloading(engineering) => engineering.drain(),
            _ => self.expires = keep.and_then(|keep| self.used.checked_add(keep)),
        }
    }

    /// Its worker has ended.
    pub(super) fn ended(&mut self) {
        (self.past, self.past_reloads) = (self.stats(), self.reloads());
        let problem = match &self.phase {
            Phase::Loaded(engineering) => engineering.failure(),
            _ => None,
        };
        self.counts.unloads += 1;
        self.expires = None;
        self.phase = match problem {
            Some(problem) => Phase::Failed { problem, at: Instant::now() },
            None => Phase::Unloaded,
        };
    }
}
