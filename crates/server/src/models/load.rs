//! Loading of models: one at a time, after unloading others if necessary.

use super::entry::{ModelEntry, ModelPhase};
use super::table::ModelTable;
use crate::adapters::SetScales;
use crate::model::{LoadError, Loader, ModelSettings};
use crate::worker::{StartedWorker, StepHook};
use latent_engine::EngineError;
use latent_engine::scheduler::SchedulerOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Loads the models.
pub(super) struct ModelLoader {
    pub(super) table: Arc<ModelTable>,
    loaders: Mutex<Vec<LoadableModel>>,
    options: SchedulerOptions,
    before_step: Option<StepHook>,
    /// Maximum number of loaded models; 0: as many as fit into memory.
    max: usize,
    draining: AtomicBool,
    /// Serializes loads: each sizes its KV cache by the free memory, which must include what the
    /// previous load has taken.
    turn: tokio::sync::Mutex<()>,
}

/// Everything that is needed to load a model.
#[derive(Clone)]
struct LoadableModel {
    loader: Arc<Mutex<Loader>>,
    /// Scales of adapters that clients have set. They survive an unload.
    scales: Arc<SetScales>,
    options: SchedulerOptions,
}

impl ModelLoader {
    pub(super) fn new(
        table: Arc<ModelTable>,
        max: usize,
        options: &SchedulerOptions,
        before_step: Option<StepHook>,
    ) -> ModelLoader {
        ModelLoader {
            table,
            options: options.clone(),
            loaders: Mutex::default(),
            before_step,
            max,
            draining: AtomicBool::new(false),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Appends a model. `several`: whether the server has other models.
    pub(super) fn push(&self, name: &str, loader: Loader, settings: &ModelSettings, several: bool) {
        let mut options = own_options(&self.options, several, name);
        if let Some(parallel) = settings.parallel {
            options.max_running = parallel.max(1);
        }
        let loader = Arc::new(Mutex::new(loader));
        self.lock().push(LoadableModel { loader, scales: Arc::default(), options });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LoadableModel>> {
        self.loaders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(super) fn drain(&self) {
        // Before the workers are drained: `load` checks the flag after it has published a worker,
        // so either this call drains that worker or `load` does.
        self.draining.store(true, Ordering::SeqCst);
        self.table.drain();
    }

    /// Loads a model whose phase already is [`ModelPhase::Loading`]. Logs an error unless the
    /// caller reports it.
    pub(super) async fn run(self: Arc<Self>, index: usize, reported: bool) -> Result<(), LoadError> {
        let result = self.load(index).await;
        match &result {
            Ok(time) => self.table.loaded(index, *time),
            Err(error) => {
                if !reported {
                    tracing::error!("a model cannot be loaded: {error}");
                }
                self.table.change(index, |entry| entry.failed(error.to_string()));
            }
        }
        result.map(|_| ())
    }

    /// Returns the duration of the load.
    async fn load(&self, index: usize) -> Result<Duration, LoadError> {
        let _turn = self.turn.lock().await;
        if self.max > 0 {
            self.wait_for_room(index, self.max - 1).await?;
        }
        loop {
            if self.is_draining() {
                return Err("the server is shutting down".into());
            }
            let (start, others) = (Instant::now(), self.table.others(index));
            let LoadableModel { loader, scales, options } = self.lock()[index].clone();
            let (from, hook) = ((&loader, &scales), self.before_step.clone());
            let started = StartedWorker::new(from, others == 0, options, hook)?;
            let StartedWorker { worker_handle, loaded, ended, thread } = started;
            self.table.keep_thread(thread);
            self.table.change(index, |entry| entry.phase = ModelPhase::Loading(Some(worker_handle)));
            if self.is_draining() {
                self.table.drain();
            }
            match loaded.await.unwrap_or_else(|_| Err("its thread has ended".into())) {
                Ok(()) => {
                    let table = Arc::clone(&self.table);
                    tokio::spawn(async move {
                        // Always an error: the sender is dropped with the model's memory.
                        let _ = ended.await;
                        table.change(index, ModelEntry::ended);
                    });
                    return Ok(start.elapsed());
                }
                // One model is unloaded per attempt: how much memory is missing is unknown.
                Err(error) if others > 0 && is_memory(&*error) => {
                    self.table.change(index, |entry| entry.phase = ModelPhase::Loading(None));
                    self.wait_for_room(index, others - 1).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Unloads the least recently used models until at most `max` others are loaded.
    async fn wait_for_room(&self, index: usize, max: usize) -> Result<(), LoadError> {
        // Subscribed before the first check, so that a change in between is not missed.
        let mut changes = self.table.changes();
        while self.table.others(index) > max {
            if self.is_draining() {
                return Err("the server is shutting down".into());
            }
            self.table.unload_oldest();
            // Cannot fail: the table owns the sender.
            let _ = changes.changed().await;
        }
        Ok(())
    }
}

/// The scheduler options of one model.
fn own_options(options: &SchedulerOptions, several: bool, name: &str) -> SchedulerOptions {
    // Each model has its own folder in `--cache-disk`. In a shared one, the models would evict each
    // other's prefixes, since the size limit applies to a folder.
    let mut own = options.clone();
    if let Some(disk) = own.disk.as_mut().filter(|_| several) {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        disk.path = disk.path.join(format!("model-{}", name.chars().map(plain).collect::<String>()));
    }
    own
}

/// Whether a load failed for lack of memory, so that unloading another model may help.
fn is_memory(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(error.downcast_ref::<EngineError>(), Some(EngineError::Memory(_)))
}
