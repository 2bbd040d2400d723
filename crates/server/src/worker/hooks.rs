//! The server's hooks in the engine's thread: loading by the server's loader, and publishing of
//! state and statistics.

use super::profile::Clocks;
use super::{ModelState, WorkerHandle};
use crate::adapters::SetScales;
use crate::model::{LoadAttempt, LoadError, LoadedModel, Loader, ServedModel};
use latent_engine::scheduler::{Scheduler, SchedulerOptions};
use latent_engine::worker::{WorkerHooks, WorkerModel};
use latent_types::panic_text;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// Called before each step. Tests make it panic.
pub type StepHook = Arc<dyn Fn() + Send + Sync>;

/// A running worker thread.
pub(crate) struct StartedWorker {
    pub(crate) worker_handle: Arc<WorkerHandle>,
    /// Receives the result of the first load.
    pub(crate) loaded: oneshot::Receiver<Result<(), LoadError>>,
    /// Closed when all memory of the model has been released.
    pub(crate) ended: oneshot::Receiver<()>,
    pub(crate) thread: JoinHandle<()>,
}

impl StartedWorker {
    /// Starts the thread, which loads the model and runs it.
    pub(crate) fn new(
        (loader, scales): (&Arc<Mutex<Loader>>, &Arc<SetScales>),
        alone: bool,
        options: SchedulerOptions,
        before_step: Option<StepHook>,
    ) -> std::io::Result<StartedWorker> {
        let (worker_handle, queue) = WorkerHandle::new();
        let worker_handle = Arc::new(worker_handle);
        let (first, loaded) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let hooks = ServerHooks {
            worker_handle: Arc::clone(&worker_handle),
            loader: Arc::clone(loader),
            scales: Arc::clone(scales),
            alone,
            options,
            before_step,
            first: Some(first),
            served: None,
            clocks: Clocks::default(),
            _end: end,
        };
        let thread = queue.start("engine", hooks)?;
        Ok(StartedWorker { worker_handle, loaded, ended, thread })
    }
}

struct ServerHooks {
    worker_handle: Arc<WorkerHandle>,
    loader: Arc<Mutex<Loader>>,
    /// The scales of adapters that clients have set.
    scales: Arc<SetScales>,
    /// See [`LoadAttempt::alone`].
    alone: bool,
    options: SchedulerOptions,
    before_step: Option<StepHook>,
    /// Sends the result of the first load.
    first: Option<oneshot::Sender<Result<(), LoadError>>>,
    /// The loaded model, until the scheduler is ready.
    served: Option<Arc<ServedModel>>,
    clocks: Clocks,
    /// Closes [`StartedWorker::ended`]. The worker drops its hooks after the scheduler, so the
    /// model's memory has been released by then.
    _end: oneshot::Sender<()>,
}

impl ServerHooks {
    fn try_load(&mut self, lost: Option<&str>) -> Result<WorkerModel, LoadError> {
        let worker_handle = &self.worker_handle;
        let mut progress = |done, total| worker_handle.set_state(ModelState::Loading { done, total });
        let mut attempt = LoadAttempt { progress: &mut progress, alone: self.alone, lost };
        let mut loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        // A panic of the loader is the error of this load. If it ended the thread instead, a model
        // that is loaded again after a fault would stay in the state "loading".
        let loaded = catch_unwind(AssertUnwindSafe(|| (*loader)(&mut attempt)))
            .unwrap_or_else(|panic| Err(panic_text(&*panic).into()))?;
        self.served = Some(Arc::new(ServedModel::new(&loaded, &self.scales)?));
        let LoadedModel { engine, tokenizer, about } = loaded;
        let options = SchedulerOptions { outlives_device: about.falls_back, ..self.options.clone() };
        Ok(WorkerModel { engine, tokenizer, options })
    }
}

impl WorkerHooks for ServerHooks {
    fn load(&mut self, lost: Option<&str>) -> Result<WorkerModel, String> {
        self.try_load(lost).map_err(|error| {
            let problem = error.to_string();
            self.worker_handle.set_state(ModelState::Failed(problem.clone()));
            if let Some(first) = self.first.take() {
                // Only the first result is awaited, and its receiver may have been dropped.
                let _ = first.send(Err(error));
            }
            problem
        })
    }

    fn ready(&mut self, scheduler: &mut Scheduler) {
        self.worker_handle.live.publish(scheduler.stats());
        if let Some(served) = self.served.take() {
            // Before `first`: the registry then marks the model as loaded, and its requests call
            // `ready`.
            self.worker_handle.set_state(ModelState::Ready(served));
        }
        if let Some(first) = self.first.take() {
            let _ = first.send(Ok(()));
        }
    }

    fn observe(&mut self, scheduler: &mut Scheduler) {
        self.worker_handle.live.publish(scheduler.stats());
    }

    fn woke(&mut self) {
        self.worker_handle.live.wake();
    }

    fn before_step(&mut self, scheduler: &mut Scheduler) {
        self.clocks.before(scheduler, &self.worker_handle.watched);
        if let Some(hook) = &self.before_step {
            hook();
        }
    }

    fn after_step(&mut self, scheduler: &mut Scheduler, idle: bool) {
        self.clocks.after(scheduler, &self.worker_handle.watched, idle);
    }

    fn faulted(&mut self, _problem: &str) -> bool {
        self.worker_handle.set_state(ModelState::Loading { done: 0, total: 0 });
        self.worker_handle.live.reloaded();
        // The clocks belong to the scheduler that was lost.
        self.clocks = Clocks::default();
        true
    }
}
