//! The loop of the engine's thread.

use super::events::{JobNotice, NoticeSender};
use super::profile::Clocks;
use super::{Command, JobSubmission, ModelState, WorkerHandle};
use crate::model::{LoadAttempt, LoadError, LoadedModel, Loader, ServedModel};
use latent_engine::scheduler::{JobError, JobEvent, JobId, Scheduler, SchedulerOptions, SuspendedJobs};
use latent_types::panic_text;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Called before each step; tests make it panic.
pub type StepHook = Arc<dyn Fn() + Send + Sync>;

/// The engine's thread.
pub(crate) struct EngineWorker {
    worker_handle: Arc<WorkerHandle>,
    loader: Arc<Mutex<Loader>>,
    /// See [`LoadAttempt::alone`].
    alone: bool,
    commands: Receiver<Command>,
    options: SchedulerOptions,
    before_step: Option<StepHook>,
    routes: HashMap<JobId, (NoticeSender, usize)>,
    /// No more jobs come.
    stopping: bool,
    /// See [`ModelFacts::falls_back`](crate::ModelFacts::falls_back).
    falls_back: bool,
}

/// A worker's thread that has been started.
pub(crate) struct StartedWorker {
    pub(crate) worker_handle: Arc<WorkerHandle>,
    /// Hears whether the model was loaded.
    pub(crate) loaded: oneshot::Receiver<Result<(), LoadError>>,
    /// Hears, by the end of the channel, that all memory of the model has been given back.
    pub(crate) ended: oneshot::Receiver<()>,
    pub(crate) thread: JoinHandle<()>,
}

/// Why the loop over one loaded model ends.
enum WorkerEnd {
    Stopped,
    Reload,
    /// Its device is gone, for this reason.
    Lost(String),
}

/// How often loading is tried again after a fault before it counts as failed, and how long to wait in between.
const RELOADS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(10)];

/// Steps that may fail one after the other before the model is loaded again.
const FAILURES: usize = 2;

impl EngineWorker {
    /// Starts the thread, which loads the model and runs it.
    pub(crate) fn start(
        loader: &Arc<Mutex<Loader>>,
        alone: bool,
        options: SchedulerOptions,
        before_step: Option<StepHook>,
    ) -> std::io::Result<StartedWorker> {
        let (sender, commands) = channel();
        let worker_handle = Arc::new(WorkerHandle::new(sender));
        let (first, loaded) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let worker = EngineWorker {
            worker_handle: Arc::clone(&worker_handle),
            loader: Arc::clone(loader),
            alone,
            commands,
            options,
            before_step,
            routes: HashMap::new(),
            stopping: false,
            falls_back: false,
        };
        let run = move || {
            worker.run(first);
            drop(end);
        };
        let thread = std::thread::Builder::new().name("engine".into()).spawn(run)?;
        Ok(StartedWorker { worker_handle, loaded, ended, thread })
    }

    fn run(mut self, first: oneshot::Sender<Result<(), LoadError>>) {
        let mut scheduler = match self.load(None) {
            Ok(loaded) => self.scheduler(loaded, None),
            Err(error) => {
                self.worker_handle.set_state(ModelState::Failed(error.to_string()));
                // the receiver may have been dropped
                let _ = first.send(Err(error));
                return;
            }
        };
        let _ = first.send(Ok(()));
        loop {
            let lost = match self.serve(&mut scheduler) {
                WorkerEnd::Stopped => return,
                WorkerEnd::Reload => None,
                WorkerEnd::Lost(problem) => Some(problem),
            };
            self.worker_handle.live.reloaded();
            let jobs = self.take_apart(scheduler, lost.as_deref());
            match self.reload(lost.as_deref(), jobs) {
                Some(next) => scheduler = next,
                None => return,
            }
        }
    }

    /// Releases everything that a scheduler has, except the jobs that outlive a lost device.
    fn take_apart(&self, scheduler: Scheduler, lost: Option<&str>) -> Option<SuspendedJobs> {
        let Some(problem) = lost.filter(|_| self.falls_back) else {
            // what failed may fail again while it is taken apart
            let _ = catch_unwind(AssertUnwindSafe(|| drop(scheduler)));
            return None;
        };
        let (engine, jobs) = scheduler.suspend();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
        let count = jobs.ids().count();
        tracing::error!("{problem}; the model is loaded elsewhere, where {count} requests go on");
        Some(jobs)
    }

    fn load(&mut self, lost: Option<&str>) -> Result<(LoadedModel, Arc<ServedModel>), LoadError> {
        let worker_handle = Arc::clone(&self.worker_handle);
        let mut progress = |done, total| worker_handle.set_state(ModelState::Loading { done, total });
        let mut attempt = LoadAttempt { progress: &mut progress, alone: self.alone, lost };
        let mut loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = catch_unwind(AssertUnwindSafe(|| (*loader)(&mut attempt)))
            .unwrap_or_else(|panic| Err(panic_text(&*panic).into()))?;
        let served = Arc::new(ServedModel::new(&loaded)?);
        Ok((loaded, served))
    }

    /// Schedules requests on a model, first those that ran where it was before.
    fn scheduler(
        &mut self,
        (loaded, served): (LoadedModel, Arc<ServedModel>),
        jobs: Option<SuspendedJobs>,
    ) -> Scheduler {
        let LoadedModel { engine, tokenizer, about } = loaded;
        self.falls_back = about.falls_back;
        let options = SchedulerOptions { outlives_device: about.falls_back, ..self.options.clone() };
        let scheduler = match jobs {
            Some(jobs) => Scheduler::resume(engine, tokenizer, options, jobs),
            None => Scheduler::new(engine, tokenizer, options),
        };
        self.worker_handle.live.publish(scheduler.stats());
        self.worker_handle.set_state(ModelState::Ready(served));
        scheduler
    }

    fn reload(&mut self, lost: Option<&str>, jobs: Option<SuspendedJobs>) -> Option<Scheduler> {
        for pause in RELOADS {
            std::thread::sleep(pause);
            match self.load(lost) {
                Ok(loaded) => {
                    tracing::warn!("the model was loaded again after a fault");
                    return Some(self.scheduler(loaded, jobs));
                }
                Err(error) => {
                    tracing::error!("the model cannot be loaded again: {error}");
                    self.worker_handle.set_state(ModelState::Failed(error.to_string()));
                    self.end_routes(&error.to_string());
                }
            }
        }
        None
    }

    /// Steps while there is work, sleeps while there is none.
    fn serve(&mut self, scheduler: &mut Scheduler) -> WorkerEnd {
        let (mut busy, mut failures) = (!scheduler.is_idle(), 0);
        let mut clocks = Clocks::default();
        loop {
            match self.take(scheduler, busy) {
                CommandIntake::Nothing => {}
                CommandIntake::Jobs => {
                    busy = true;
                    self.worker_handle.live.publish(scheduler.stats());
                }
                CommandIntake::Stop => self.stopping = true,
            }
            if !busy {
                if self.stopping {
                    return WorkerEnd::Stopped;
                }
                continue;
            }
            clocks.before(scheduler, &self.worker_handle.watched);
            match self.step(scheduler) {
                Ok(more) => (busy, failures) = (more, 0),
                Err(StepFault::Lost(problem)) => {
                    self.worker_handle.set_state(ModelState::Loading { done: 0, total: 0 });
                    if !self.falls_back {
                        tracing::error!("a step failed: {problem}");
                        self.fail_all(&problem);
                    }
                    return WorkerEnd::Lost(problem);
                }
                Err(StepFault::Step(problem)) => {
                    failures += 1;
                    tracing::error!("a step failed: {problem}");
                    if failures >= FAILURES {
                        self.fail_all(&problem);
                        return WorkerEnd::Reload;
                    }
                }
                Err(StepFault::Panic(problem)) => {
                    tracing::error!("the engine panicked: {problem}");
                    self.fail_all(&problem);
                    return WorkerEnd::Reload;
                }
            }
            clocks.after(scheduler, &self.worker_handle.watched, !busy);
            self.worker_handle.live.publish(scheduler.stats());
        }
    }

    /// Takes all pending commands while the engine is busy, else waits for one.
    fn take(&mut self, scheduler: &mut Scheduler, busy: bool) -> CommandIntake {
        let mut took = CommandIntake::Nothing;
        loop {
            let command = if busy || self.stopping || matches!(took, CommandIntake::Jobs) {
                self.commands.try_recv().map_err(|error| error == TryRecvError::Disconnected)
            } else {
                let wait =
                    scheduler.next_deadline().map_or(Duration::from_secs(3600), |at| at - Instant::now());
                let received = self.commands.recv_timeout(wait);
                self.worker_handle.live.wake();
                received.map_err(|error| error == RecvTimeoutError::Disconnected)
            };
            match command {
                Ok(Command::Submit(submission)) => {
                    self.worker_handle.queued.fetch_sub(1, Ordering::SeqCst);
                    self.accept(scheduler, *submission);
                    took = CommandIntake::Jobs;
                }
                Ok(Command::Work(work)) => {
                    // the caller that waits learns that no result comes
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(scheduler))) {
                        tracing::error!("work between two steps panicked: {}", panic_text(&*panic));
                    }
                    self.worker_handle.live.publish(scheduler.stats());
                }
                Ok(Command::Stop) | Err(true) => {
                    scheduler.close();
                    return CommandIntake::Stop;
                }
                Err(false) => return took,
            }
        }
    }

    fn accept(&mut self, scheduler: &mut Scheduler, submission: JobSubmission) {
        let JobSubmission { job, choices, events } = submission;
        if events.is_gone() {
            return;
        }
        match scheduler.submit_choices(job, choices) {
            Ok(ids) => {
                for (choice, id) in ids.iter().enumerate() {
                    self.routes.insert(*id, (events.clone(), choice));
                }
                events.bind(scheduler.canceller(), ids);
                events.send(JobNotice::Accepted);
            }
            Err(refusal) => {
                events.send(JobNotice::Refused(refusal));
            }
        }
    }

    fn step(&mut self, scheduler: &mut Scheduler) -> Result<bool, StepFault> {
        let routes = &mut self.routes;
        let hook = self.before_step.as_deref();
        let mut listener = |id: JobId, event: JobEvent| {
            let last = event.is_last();
            if let Some((events, choice)) = routes.get(&id) {
                events.send(JobNotice::Event { choice: *choice, event });
            }
            if last {
                routes.remove(&id);
            }
        };
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            if let Some(hook) = hook {
                hook();
            }
            scheduler.step(&mut listener)
        }));
        match stepped {
            Ok(Ok(more)) => Ok(more),
            Ok(Err(error)) if error.is_lost() => Err(StepFault::Lost(error.to_string())),
            Ok(Err(error)) => Err(StepFault::Step(error.to_string())),
            Err(panic) => Err(StepFault::Panic(panic_text(&*panic).to_owned())),
        }
    }

    /// Ends all jobs after a fault. Who hears of it must not find the model ready.
    fn fail_all(&mut self, problem: &str) {
        self.worker_handle.set_state(ModelState::Loading { done: 0, total: 0 });
        self.end_routes(problem);
    }

    fn end_routes(&mut self, problem: &str) {
        for (_, (events, choice)) in self.routes.drain() {
            fail(&events, choice, problem);
        }
    }
}

enum CommandIntake {
    Nothing,
    Jobs,
    Stop,
}

/// What went wrong with a step.
enum StepFault {
    /// The device is gone.
    Lost(String),
    Step(String),
    Panic(String),
}

fn fail(events: &NoticeSender, choice: usize, problem: &str) {
    events.send(JobNotice::Event { choice, event: JobEvent::Failed(JobError::Engine(problem.to_owned())) });
}
