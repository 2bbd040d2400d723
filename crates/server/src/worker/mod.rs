//! The worker thread of a served model, and its handle for the HTTP thread.

mod events;
mod hooks;
mod live;
mod profile;
mod slots;
mod stand_in;

pub(crate) use events::{JobNotice, NoticeReceiver, events};
pub(crate) use hooks::StartedWorker;
pub use hooks::StepHook;
pub(crate) use live::LiveFigures;
pub(crate) use profile::WatchedProfile;
pub(crate) use slots::{NoText, SlotHold, SlotTask, SlotText, Slots};
pub use stand_in::TakenJob;
pub(crate) use stand_in::stand_in;

use crate::error::{ApiError, ErrorKind};
use crate::model::ServedModel;
use events::NoticeSender;
use latent_engine::scheduler::{Job, JobChoice, Scheduler};
use latent_engine::worker::{JobSubmission, WorkerCommand, WorkerCommands, WorkerGone, WorkerQueue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// State of a worker's model.
#[derive(Clone)]
pub(crate) enum ModelState {
    /// `done` of `total` bytes have been read.
    Loading {
        done: u64,
        total: u64,
    },
    Ready(Arc<ServedModel>),
    Failed(String),
}

/// State that the HTTP thread and the worker share.
pub(crate) struct WorkerHandle {
    state: Mutex<ModelState>,
    draining: AtomicBool,
    pub(crate) live: LiveFigures,
    pub(crate) watched: WatchedProfile,
    pub(crate) slots: Arc<Slots>,
    commands: WorkerCommands,
}

/// Maximum number of jobs in the channel to the worker. The scheduler's queue has a limit of its
/// own, but it reads the channel only between steps.
const MAX_QUEUED: usize = 1024;

impl WorkerHandle {
    /// Creates a handle and the worker's queue.
    fn new() -> (WorkerHandle, WorkerQueue) {
        let (commands, queue) = WorkerCommands::channel();
        let worker_handle = WorkerHandle {
            state: Mutex::new(ModelState::Loading { done: 0, total: 0 }),
            draining: AtomicBool::new(false),
            live: LiveFigures::default(),
            watched: WatchedProfile::default(),
            slots: Arc::default(),
            commands,
        };
        (worker_handle, queue)
    }

    pub(crate) fn state(&self) -> ModelState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_state(&self, state: ModelState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The error of a failed load.
    pub(crate) fn failure(&self) -> Option<String> {
        match self.state() {
            ModelState::Failed(problem) => Some(problem),
            ModelState::Loading { .. } | ModelState::Ready(_) => None,
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The loaded model, unless the server is draining.
    pub(crate) fn ready(&self) -> Result<Arc<ServedModel>, ApiError> {
        let unavailable =
            |problem: String| ApiError::new(ErrorKind::Unavailable, problem).retry(Duration::from_secs(2));
        if self.is_draining() {
            return Err(unavailable("the server is shutting down".into()));
        }
        match self.state() {
            ModelState::Ready(served) => Ok(served),
            ModelState::Loading { done, total } if total > 0 => {
                // The text of llama.cpp's 503 while a model loads.
                Err(unavailable(format!("Loading model ({} %)", done * 100 / total)))
            }
            ModelState::Loading { .. } => Err(unavailable("Loading model".into())),
            ModelState::Failed(problem) => {
                Err(ApiError::internal(format!("the model cannot be loaded: {problem}")))
            }
        }
    }

    /// Submits a job to the engine. `events` receives its events.
    pub(crate) fn submit(
        &self,
        job: Job,
        choices: Vec<JobChoice>,
        events: NoticeSender,
    ) -> Result<(), ApiError> {
        if self.commands.queued() >= MAX_QUEUED {
            let problem = format!("{MAX_QUEUED} requests are waiting for the engine: try again in a second");
            return Err(ApiError::new(ErrorKind::Busy, problem).retry(Duration::from_secs(1)));
        }
        let gone =
            |_: WorkerGone| ApiError::new(ErrorKind::Unavailable, "the model is no longer loaded: try again");
        self.commands.submit(JobSubmission { job, choices, receiver: Box::new(events) }).map_err(gone)
    }

    /// Runs work on the engine's thread, between two steps.
    pub(crate) async fn with_scheduler<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, result) = oneshot::channel();
        let work = move |scheduler: &mut Scheduler| {
            // The client may have disconnected.
            let _ = sender.send(work(scheduler));
        };
        let gone = "the model is no longer loaded, or has failed: try again";
        let gone = || ApiError::new(ErrorKind::Unavailable, gone);
        self.commands.send(WorkerCommand::Between(Box::new(work))).map_err(|_| gone())?;
        result.await.map_err(|_| gone())
    }

    /// Refuses new requests. Running ones finish.
    pub(crate) fn drain(&self) {
        // Several events drain a model, such as an unload during shutdown. Only the first one sends
        // the command.
        if !self.draining.swap(true, Ordering::SeqCst) {
            // The worker may have ended already.
            let _ = self.commands.send(WorkerCommand::Close);
        }
    }
}
