//! One model of the server: whether it is loaded, and who uses it.

use super::events::{ModelChange, ModelEvents};
use crate::worker::WorkerHandle;
use latent_engine::scheduler::SchedulerStats;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Whether a model is loaded.
pub(crate) enum ModelPhase {
    Unloaded,
    /// None: it waits until there is room.
    Loading(Option<Arc<WorkerHandle>>),
    Loaded(Arc<WorkerHandle>),
    /// Its users end; then its thread ends.
    Unloading(Arc<WorkerHandle>),
    Failed {
        problem: String,
        at: Instant,
    },
}

/// What has become of a model since the server started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadCounts {
    pub(crate) loads: u64,
    pub(crate) failures: u64,
    pub(crate) unloads: u64,
    pub(crate) load_time: Duration,
}

/// One model of the server.
pub(crate) struct ModelEntry {
    name: String,
    pub(super) phase: ModelPhase,
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
    pub(super) counts: LoadCounts,
    /// Sums of its workers that have ended.
    past: SchedulerStats,
    /// Reloads of its workers that have ended.
    past_reloads: u64,
}

impl ModelEntry {
    pub(super) fn new(name: &str, idle: Option<Option<Duration>>) -> ModelEntry {
        ModelEntry {
            name: name.to_owned(),
            phase: ModelPhase::Unloaded,
            reported: "unloaded",
            removed: false,
            idle,
            users: 0,
            waiting: 0,
            used: Instant::now(),
            expires: None,
            keep: None,
            counts: LoadCounts::default(),
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
            ModelPhase::Unloaded => "unloaded",
            ModelPhase::Loading(_) => "loading",
            ModelPhase::Loaded(_) => "loaded",
            ModelPhase::Unloading(_) => "unloading",
            ModelPhase::Failed { .. } => "failed",
        }
    }

    /// Reports its status if that has changed.
    pub(super) fn report(&mut self, events: &ModelEvents) {
        let state = self.label();
        if std::mem::replace(&mut self.reported, state) == state || self.removed {
            return;
        }
        let problem = match &self.phase {
            ModelPhase::Failed { problem, .. } => Some(problem.clone()),
            _ => None,
        };
        events.send(&self.name, ModelChange::Status { state, problem });
    }

    /// Whether it is in memory, or about to be.
    pub(super) fn is_in_use(&self) -> bool {
        !matches!(self.phase, ModelPhase::Unloaded | ModelPhase::Failed { .. })
            || self.users > 0
            || self.waiting > 0
    }

    /// Its worker, if it has one.
    pub(super) fn worker_handle(&self) -> Option<&Arc<WorkerHandle>> {
        match &self.phase {
            ModelPhase::Loading(worker_handle) => worker_handle.as_ref(),
            ModelPhase::Loaded(worker_handle) | ModelPhase::Unloading(worker_handle) => Some(worker_handle),
            ModelPhase::Unloaded | ModelPhase::Failed { .. } => None,
        }
    }

    /// What its schedulers have done since the server started; the present state is that of the one that it has.
    pub(super) fn stats(&self) -> SchedulerStats {
        let now = self.worker_handle().map(|worker_handle| worker_handle.live.stats()).unwrap_or_default();
        now.after(&self.past)
    }

    /// Faults after which it was loaded again, since the server started.
    pub(super) fn reloads(&self) -> u64 {
        self.past_reloads + self.worker_handle().map_or(0, |worker_handle| worker_handle.live.reloads())
    }

    pub(super) fn is_loaded(&self) -> bool {
        matches!(self.phase, ModelPhase::Loaded(_))
    }

    /// It is loaded, which took `took`; `idle`: idle time after which it is unloaded.
    pub(super) fn loaded(&mut self, time: Duration, idle: Option<Duration>) {
        if let ModelPhase::Loading(Some(worker_handle)) = &self.phase {
            self.phase = ModelPhase::Loaded(Arc::clone(worker_handle));
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
        self.phase = ModelPhase::Failed { problem, at: Instant::now() };
        self.counts.failures += 1;
    }

    /// Lets its users end, and then its worker.
    pub(super) fn unload(&mut self) {
        if let ModelPhase::Loaded(worker_handle) = &self.phase {
            let worker_handle = Arc::clone(worker_handle);
            if self.users == 0 {
                worker_handle.drain();
            }
            self.phase = ModelPhase::Unloading(worker_handle);
            self.expires = None;
        }
    }

    /// Lets all that it has been asked for end, and then its worker. One that is being loaded cannot be stopped and comes to its end first.
    pub(super) fn unload_soon(&mut self) {
        match &self.phase {
            ModelPhase::Loaded(_) if self.waiting == 0 => self.unload(),
            ModelPhase::Loaded(_) | ModelPhase::Loading(_) => self.keep = Some(Some(Duration::ZERO)),
            ModelPhase::Unloaded | ModelPhase::Unloading(_) | ModelPhase::Failed { .. } => {}
        }
    }

    /// It is wanted, whatever was said or has failed before.
    pub(super) fn retry(&mut self) {
        self.keep = None;
        if let ModelPhase::Failed { .. } = self.phase {
            self.phase = ModelPhase::Unloaded;
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
            ModelPhase::Unloading(worker_handle) => worker_handle.drain(),
            _ => self.expires = keep.and_then(|keep| self.used.checked_add(keep)),
        }
    }

    /// Its worker has ended.
    pub(super) fn ended(&mut self) {
        (self.past, self.past_reloads) = (self.stats(), self.reloads());
        let problem = match &self.phase {
            ModelPhase::Loaded(worker_handle) => worker_handle.failure(),
            _ => None,
        };
        self.counts.unloads += 1;
        self.expires = None;
        self.phase = match problem {
            Some(problem) => ModelPhase::Failed { problem, at: Instant::now() },
            None => ModelPhase::Unloaded,
        };
    }
}
