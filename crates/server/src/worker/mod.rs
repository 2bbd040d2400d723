//! The engine's own thread: it owns the scheduler, takes jobs from a channel and tells what becomes of them.

mod events;
mod live;
mod profile;
mod run;
mod slots;
mod stand_in;

pub(crate) use events::{JobNotice, NoticeReceiver, events};
pub(crate) use live::LiveFigures;
pub(crate) use profile::WatchedProfile;
pub use run::StepHook;
pub(crate) use run::{EngineWorker, StartedWorker};
pub(crate) use slots::{NoText, SlotHold, SlotTask, SlotText, Slots};
pub use stand_in::TakenJob;
pub(crate) use stand_in::stand_in;

use crate::error::{ApiError, ErrorKind};
use crate::model::ServedModel;
use events::NoticeSender;
use latent_engine::scheduler::{Job, JobChoice, Scheduler};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A job for the engine, and who hears of it.
pub(crate) struct JobSubmission {
    pub(crate) job: Job,
    pub(crate) choices: Vec<JobChoice>,
    pub(crate) events: NoticeSender,
}

/// Work that needs the scheduler.
type Work = Box<dyn FnOnce(&mut Scheduler) + Send>;

enum Command {
    Submit(Box<JobSubmission>),
    /// Work between two steps.
    Work(Work),
    /// No more jobs come; end when the running ones have ended.
    Stop,
}

/// Whether the model can be asked.
#[derive(Clone)]
pub(crate) enum ModelState {
    /// Bytes read, of how many.
    Loading {
        done: u64,
        total: u64,
    },
    Ready(Arc<ServedModel>),
    Failed(String),
}

/// What HTTP and the worker share.
pub(crate) struct WorkerHandle {
    state: Mutex<ModelState>,
    draining: AtomicBool,
    /// Jobs in the channel, which the scheduler has not seen yet.
    queued: AtomicUsize,
    pub(crate) live: LiveFigures,
    pub(crate) watched: WatchedProfile,
    pub(crate) slots: Arc<Slots>,
    commands: Sender<Command>,
}

/// Most jobs between HTTP and the scheduler; its own queue has its own limits.
const MAX_QUEUED: usize = 1024;

impl WorkerHandle {
    fn new(commands: Sender<Command>) -> WorkerHandle {
        WorkerHandle {
            state: Mutex::new(ModelState::Loading { done: 0, total: 0 }),
            draining: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            live: LiveFigures::default(),
            watched: WatchedProfile::default(),
            slots: Arc::default(),
            commands,
        }
    }

    pub(crate) fn state(&self) -> ModelState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_state(&self, state: ModelState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Why the model could not be loaded, if it could not.
    pub(crate) fn failure(&self) -> Option<String> {
        match self.state() {
            ModelState::Failed(problem) => Some(problem),
            ModelState::Loading { .. } | ModelState::Ready(_) => None,
        }
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// The model, once it is loaded and while requests are taken.
    pub(crate) fn ready(&self) -> Result<Arc<ServedModel>, ApiError> {
        let unavailable =
            |problem: String| ApiError::new(ErrorKind::Unavailable, problem).retry(Duration::from_secs(2));
        if self.is_draining() {
            return Err(unavailable("the server is shutting down".into()));
        }
        match self.state() {
            ModelState::Ready(served) => Ok(served),
            ModelState::Loading { done, total } if total > 0 => {
                Err(unavailable(format!("Loading model ({} %)", done * 100 / total)))
            }
            ModelState::Loading { .. } => Err(unavailable("Loading model".into())),
            ModelState::Failed(problem) => {
                Err(ApiError::internal(format!("the model cannot be loaded: {problem}")))
            }
        }
    }

    pub(crate) fn submit(&self, submission: JobSubmission) -> Result<(), ApiError> {
        if self.queued.fetch_add(1, Ordering::SeqCst) >= MAX_QUEUED {
            self.queued.fetch_sub(1, Ordering::SeqCst);
            let problem = format!("{MAX_QUEUED} requests wait for the engine: try again in a second");
            return Err(ApiError::new(ErrorKind::Busy, problem).retry(Duration::from_secs(1)));
        }
        let gone = |_| ApiError::new(ErrorKind::Unavailable, "the model is not loaded any more: try again");
        self.commands.send(Command::Submit(Box::new(submission))).map_err(gone)
    }

    /// Runs work on the engine's thread, between two steps.
    pub(crate) async fn with_scheduler<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Scheduler) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, result) = oneshot::channel();
        let work: Work = Box::new(move |scheduler| {
            // the client may have gone away
            let _ = sender.send(work(scheduler));
        });
        let gone = "the model is not loaded any more, or has failed: try again";
        let gone = || ApiError::new(ErrorKind::Unavailable, gone);
        self.commands.send(Command::Work(work)).map_err(|_| gone())?;
        result.await.map_err(|_| gone())
    }

    /// Takes no more requests; running ones finish.
    pub(crate) fn drain(&self) {
        if !self.draining.swap(true, Ordering::SeqCst) {
            // a worker that has ended needs not hear it
            let _ = self.commands.send(Command::Stop);
        }
    }
}
