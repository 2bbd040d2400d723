//! The state of one model: its phase, its users, and when it expires.

use super::events::{ModelChange, ModelEvents};
use crate::worker::WorkerHandle;
use latent_engine::scheduler::SchedulerStats;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The phase of a model.
pub(crate) enum ModelPhase {
    Unloaded,
    /// `None`: it waits for its turn, or until other models have released their memory.
    Loading(Option<Arc<WorkerHandle>>),
    Loaded(Arc<WorkerHandle>),
    /// Its last requests run; then its thread ends.
    Unloading(Arc<WorkerHandle>),
    Failed {
        problem: String,
        at: Instant,
    },
}

/// Counters of a model since the server started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadCounts {
    pub(crate) loads: u64,
    pub(crate) failures: u64,
    pub(crate) unloads: u64,
    pub(crate) load_time: Duration,
}

/// The state of one model.
pub(crate) struct ModelEntry {
    name: String,
    pub(super) phase: ModelPhase,
    /// The status of the last event.
    reported: &'static str,
    /// Whether the model was removed from the list. Its entry stays, since indices are positions.
    pub(super) removed: bool,
    /// Its own idle time before unloading, if it has one; `Some(None)`: never.
    idle: Option<Option<Duration>>,
    /// Number of leases.
    pub(super) users: usize,
    /// Number of requests that wait until it is loaded.
    pub(super) waiting: usize,
    /// When a lease was last taken or released.
    pub(super) used: Instant,
    /// When it is unloaded unless it is used before.
    pub(super) expires: Option<Instant>,
    /// Ollama's `keep_alive` of the last request; `Some(None)`: forever.
    pub(super) keep: Option<Option<Duration>>,
    pub(super) counts: LoadCounts,
    /// Statistics of its workers that have ended.
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

    /// Sends an event if its status has changed.
    pub(super) fn report(&mut self, events: &ModelEvents) {
        let state = self.label();
        // After its removal was reported, a status would announce the model to clients again.
        if std::mem::replace(&mut self.reported, state) == state || self.removed {
            return;
        }
        let problem = match &self.phase {
            ModelPhase::Failed { problem, .. } => Some(problem.clone()),
            _ => None,
        };
        events.send(&self.name, ModelChange::Status { state, problem });
    }

    /// Whether it is in memory, or will be.
    pub(super) fn is_in_use(&self) -> bool {
        // After a failure, leases and waiting requests may remain.
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

    /// Counters over all of its schedulers since the server started, and the current state of the
    /// present one.
    pub(super) fn stats(&self) -> SchedulerStats {
        let now = self.worker_handle().map(|worker_handle| worker_handle.live.stats()).unwrap_or_default();
        now.after(&self.past)
    }

    /// Number of reloads after faults since the server started.
    pub(super) fn reloads(&self) -> u64 {
        self.past_reloads + self.worker_handle().map_or(0, |worker_handle| worker_handle.live.reloads())
    }

    pub(super) fn is_loaded(&self) -> bool {
        matches!(self.phase, ModelPhase::Loaded(_))
    }

    /// Marks the model as loaded after `time`. `idle` is the server's idle time before unloading.
    pub(super) fn loaded(&mut self, time: Duration, idle: Option<Duration>) {
        if let ModelPhase::Loading(Some(worker_handle)) = &self.phase {
            self.phase = ModelPhase::Loaded(Arc::clone(worker_handle));
        }
        self.used = Instant::now();
        // A waiting request takes its lease first and clears `expires`. `keep` is then applied when
        // that lease is released.
        let idle = self.idle.unwrap_or(idle);
        let keep = if self.waiting == 0 { self.keep.take().unwrap_or(idle) } else { idle };
        self.expires = keep.and_then(|keep| self.used.checked_add(keep));
        self.counts.loads += 1;
        self.counts.load_time += time;
    }

    /// Marks a load as failed.
    pub(super) fn failed(&mut self, problem: String) {
        self.phase = ModelPhase::Failed { problem, at: Instant::now() };
        self.counts.failures += 1;
    }

    /// Unloads the model once its last lease is released.
    pub(super) fn unload(&mut self) {
        if let ModelPhase::Loaded(worker_handle) = &self.phase {
            let worker_handle = Arc::clone(worker_handle);
            // A lease holder may not have submitted its job yet, and a draining worker would refuse
            // it. With users, `release` drains instead.
            if self.users == 0 {
                worker_handle.drain();
            }
            self.phase = ModelPhase::Unloading(worker_handle);
            self.expires = None;
        }
    }

    /// Unloads the model once all running and waiting requests are answered.
    pub(super) fn unload_soon(&mut self) {
        match &self.phase {
            ModelPhase::Loaded(_) if self.waiting == 0 => self.unload(),
            // A load cannot be interrupted. With `keep` 0 the model expires when it is done.
            ModelPhase::Loaded(_) | ModelPhase::Loading(_) => self.keep = Some(Some(Duration::ZERO)),
            ModelPhase::Unloaded | ModelPhase::Unloading(_) | ModelPhase::Failed { .. } => {}
        }
    }

    /// Prepares an explicit load: forgets an earlier `keep` and an earlier failure.
    pub(super) fn retry(&mut self) {
        self.keep = None;
        if let ModelPhase::Failed { .. } = self.phase {
            self.phase = ModelPhase::Unloaded;
        }
    }

    /// Removes a waiting request, which has got its lease or has given up.
    pub(super) fn stop_waiting(&mut self) {
        self.waiting -= 1;
        // If the last waiting request gave up, no lease will be released that would apply `keep`.
        if self.waiting == 0
            && self.users == 0
            && self.is_loaded()
            && let Some(keep) = self.keep.take()
        {
            self.expires = keep.and_then(|keep| self.used.checked_add(keep));
        }
    }

    /// Releases a lease. `idle` is the server's idle time before unloading.
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

    /// Marks the model as unloaded: its worker has ended.
    pub(super) fn ended(&mut self) {
        // Before the phase changes, which drops the worker and its statistics.
        (self.past, self.past_reloads) = (self.stats(), self.reloads());
        let problem = match &self.phase {
            // The worker ended at shutdown, or because all reloads after a fault failed.
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
