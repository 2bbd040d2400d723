//! The thread of a model: owns the scheduler, takes jobs from a channel and sends their events.

use crate::error::{Error, ErrorKind};
use crate::listening::EventSender;
use latent_backend::CancelToken;
use latent_engine::Engine;
use latent_engine::scheduler::{Job, JobError, JobEvent, JobId, Scheduler};
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// Work with the engine itself, which does not panic, and how many tokens it puts into the KV cache.
pub(crate) struct Loan {
    pub(crate) tokens: usize,
    pub(crate) work: Box<dyn FnOnce(&mut Engine) + Send>,
}

/// What the thread is asked for.
pub(crate) enum Command {
    /// An answer.
    Submit(Box<Job>, EventSender),
    /// Work on the engine, after the jobs before it have ended. Dropped without a call if the
    /// engine has been lost.
    Lend(Loan),
}

/// A thread that runs a model. Dropped, it ends what runs, and waits until the memory has been given back.
pub(crate) struct ModelWorker {
    /// None only while it is dropped.
    commands: Option<Sender<Command>>,
    cancel: CancelToken,
    thread: Option<JoinHandle<()>>,
}

/// Steps that may fail one after the other before the thread ends.
const FAILURES: usize = 2;

impl ModelWorker {
    /// Starts the thread over a scheduler that was made on it: `make` runs there, and gives it away by calling back.
    pub(crate) fn start<T: Send + 'static>(
        make: impl FnOnce() -> Result<(Scheduler, T), Error> + Send + 'static,
    ) -> Result<StartingWorker<T>, Error> {
        let (commands, received) = channel();
        let (made, loaded) = channel();
        let run = move || {
            let result = catch_unwind(AssertUnwindSafe(make));
            let (scheduler, made_too) = match result.unwrap_or_else(|panic| Err(Error::panicked(&*panic))) {
                Ok(pair) => pair,
                Err(error) => return drop(made.send(Err(error))),
            };
            let cancel = scheduler.engine().cancel_token();
            // the caller may have stopped waiting, and then the model is dropped
            if made.send(Ok((cancel, made_too))).is_ok() {
                drop(made);
                WorkerLoop { scheduler, queue: VecDeque::new(), routes: HashMap::new() }.serve(&received);
            }
        };
        let thread = std::thread::Builder::new()
            .name("latent-model".into())
            .spawn(run)
            .map_err(|error| Error::new(ErrorKind::Engine, format!("no thread can be started: {error}")))?;
        Ok(StartingWorker { commands, loaded, thread })
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), Error> {
        let commands = self.commands.as_ref().ok_or_else(Error::gone)?;
        commands.send(command).map_err(|_| Error::gone())
    }

    /// Stops what runs at this moment.
    pub(crate) fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

    /// Forgets the thread, which a forked child does not have: waiting for it would never end.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(self.commands.take());
        std::mem::forget(self.thread.take());
    }
}

impl Drop for ModelWorker {
    fn drop(&mut self) {
        // the thread ends when it finds the channel closed
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            self.cancel.cancel();
            // the thread catches its panics and reports them as errors
            let _ = thread.join();
        }
    }
}

/// A thread that loads its model.
pub(crate) struct StartingWorker<T> {
    commands: Sender<Command>,
    /// Hears once whether the model was loaded.
    pub(crate) loaded: Receiver<Result<(CancelToken, T), Error>>,
    thread: JoinHandle<()>,
}

impl<T> StartingWorker<T> {
    /// The worker, once it has been heard of.
    pub(crate) fn ready(self, cancel: CancelToken) -> ModelWorker {
        ModelWorker { commands: Some(self.commands), cancel, thread: Some(self.thread) }
    }
}

/// What the thread has.
struct WorkerLoop {
    scheduler: Scheduler,
    queue: VecDeque<Command>,
    routes: HashMap<JobId, EventSender>,
}

impl WorkerLoop {
    /// Steps while jobs exist, otherwise sleeps. Ends when all senders are dropped.
    fn serve(mut self, commands: &Receiver<Command>) {
        let mut failures = 0;
        loop {
            if self.queue.is_empty() && self.scheduler.is_idle() {
                match commands.recv() {
                    Ok(command) => self.queue.push_back(command),
                    Err(_) => return,
                }
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.queue.push_back(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.take();
            if self.scheduler.is_idle() {
                continue;
            }
            match self.step() {
                Ok(()) => failures = 0,
                Err(SchedulerFault::Step(problem)) if failures + 1 < FAILURES => {
                    failures += 1;
                    self.fail(&problem);
                }
                Err(SchedulerFault::Step(problem) | SchedulerFault::Panic(problem)) => {
                    return self.fail(&problem);
                }
            }
        }
    }

    /// Takes what was asked for, in order: the engine is lent when the jobs before have ended, and later jobs wait for that.
    fn take(&mut self) {
        while let Some(command) = self.queue.pop_front() {
            match command {
                Command::Submit(job, telling) => self.accept(*job, telling),
                Command::Lend(loan) => match self.scheduler.lend_engine(loan.tokens) {
                    Some(engine) => {
                        engine.cancel_token().reset();
                        (loan.work)(&mut *engine);
                        engine.cancel_token().reset();
                    }
                    None => return self.queue.push_front(Command::Lend(loan)),
                },
            }
        }
    }

    fn accept(&mut self, job: Job, telling: EventSender) {
        if telling.is_gone() {
            return;
        }
        match self.scheduler.submit(job) {
            Ok(id) => {
                telling.bind(self.scheduler.canceller(), id);
                self.routes.insert(id, telling);
            }
            Err(refusal) => telling.tell(Err(refusal.into())),
        }
    }

    fn step(&mut self) -> Result<(), SchedulerFault> {
        let routes = &mut self.routes;
        let mut listener = |id: JobId, event: JobEvent| {
            let last = event.is_last();
            if let Some(telling) = routes.get(&id) {
                telling.tell(Ok(event));
            }
            if last {
                routes.remove(&id);
            }
        };
        match catch_unwind(AssertUnwindSafe(|| self.scheduler.step(&mut listener))) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(SchedulerFault::Step(error.to_string())),
            Err(panic) => Err(SchedulerFault::Panic(Error::panicked(&*panic).message)),
        }
    }

    /// Ends all jobs after a fault.
    fn fail(&mut self, problem: &str) {
        for (_, telling) in self.routes.drain() {
            telling.tell(Err(JobError::Engine(problem.to_owned()).into()));
        }
    }
}

/// What went wrong with a step.
enum SchedulerFault {
    Step(String),
    Panic(String),
}
