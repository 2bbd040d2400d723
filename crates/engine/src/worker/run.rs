//! The loop of a worker's thread.

use super::commands::{EngineLoan, JobSubmission, WorkerCommand, WorkerQueue};
use super::{JobReceiver, WorkerHooks, WorkerModel};
use crate::scheduler::{JobError, JobEvent, JobId, Scheduler, SuspendedJobs};
use crate::tracing;
use latent_threads::KERNEL_STACK;
use latent_types::panic_text;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pauses before the attempts to reload the model after a fault.
const RELOADS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(10)];

/// Number of consecutive failed steps after which the model is reloaded.
const MAX_FAILURES: usize = 2;

struct WorkerLoop<'h> {
    channel: WorkerQueue,
    hooks: &'h mut dyn WorkerHooks,
    /// Pending commands, in order.
    queue: VecDeque<WorkerCommand>,
    /// The receiver of each job, and the index of its choice.
    routes: HashMap<JobId, (Rc<dyn JobReceiver>, usize)>,
    /// Final events of the jobs that the running step has ended.
    last_events: Vec<(Rc<dyn JobReceiver>, usize, JobEvent)>,
    /// No more jobs are accepted.
    closed: bool,
    /// Running jobs do not continue either.
    ended: bool,
    /// Whether jobs outlive a lost device.
    outlives_device: bool,
}

/// Why the loop over one loaded model ends.
enum WorkerEnd {
    Stopped,
    Fault {
        /// The error of the device, if it is lost.
        lost: Option<String>,
        /// Whether to reload the model.
        again: bool,
    },
}

impl WorkerEnd {
    /// Writes the queued blocks of a scheduler to disk, which is dropped next.
    fn stopped(scheduler: &mut Scheduler) -> WorkerEnd {
        // With jobs left, the caller wants to end soon and does not wait for the disk.
        if scheduler.is_idle() {
            scheduler.flush_disk();
        }
        WorkerEnd::Stopped
    }
}

/// The kind and message of a failed step.
struct StepFault(StepFaultKind, String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepFaultKind {
    /// The device is lost.
    Lost,
    Step,
    Panic,
}

impl WorkerQueue {
    /// Starts the thread of a worker, which loads the model and runs it.
    ///
    /// # Errors
    /// When the system cannot start a thread.
    pub fn start(self, name: &str, mut hooks: impl WorkerHooks + 'static) -> std::io::Result<JoinHandle<()>> {
        // This thread computes its share of the kernels too, and needs their stack.
        let run = move || run(self, &mut hooks);
        std::thread::Builder::new().name(name.to_owned()).stack_size(KERNEL_STACK).spawn(run)
    }
}

/// Loads the model and runs it until the channel or the worker is closed.
fn run(channel: WorkerQueue, hooks: &mut dyn WorkerHooks) {
    let Ok(model) = hooks.load(None) else { return };
    let mut worker = WorkerLoop {
        channel,
        hooks,
        queue: VecDeque::new(),
        routes: HashMap::new(),
        last_events: Vec::new(),
        closed: false,
        ended: false,
        outlives_device: false,
    };
    let mut scheduler = worker.scheduler(model, None);
    while let WorkerEnd::Fault { lost, again } = worker.serve(&mut scheduler) {
        let jobs = worker.take_apart(scheduler, lost.as_deref());
        let next = if again { worker.reload(lost.as_deref(), jobs) } else { None };
        let Some(next) = next else { return };
        scheduler = next;
    }
}

impl WorkerLoop<'_> {
    /// Creates the scheduler of a model, with the jobs of a lost device.
    fn scheduler(&mut self, model: WorkerModel, jobs: Option<SuspendedJobs>) -> Scheduler {
        let WorkerModel { engine, tokenizer, options } = model;
        self.outlives_device = options.outlives_device;
        let mut scheduler = match jobs {
            Some(jobs) => Scheduler::resume(engine, tokenizer, options, jobs),
            None => Scheduler::new(engine, tokenizer, options),
        };
        // `WorkerCommands::end` must stop the steps of this scheduler.
        self.channel.set_canceller(scheduler.canceller());
        self.hooks.ready(&mut scheduler);
        scheduler
    }

    /// Drops a scheduler and its engine. Returns the jobs if they outlive a lost device.
    fn take_apart(&self, scheduler: Scheduler, lost: Option<&str>) -> Option<SuspendedJobs> {
        let Some(problem) = lost.filter(|_| self.outlives_device) else {
            // An engine that has failed may panic again while it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(scheduler)));
            return None;
        };
        let (engine, jobs) = scheduler.suspend();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
        let count = jobs.ids().count();
        tracing::error!("{problem}; loading the model on another device, where {count} requests continue");
        Some(jobs)
    }

    fn reload(&mut self, lost: Option<&str>, jobs: Option<SuspendedJobs>) -> Option<Scheduler> {
        for pause in RELOADS {
            if !self.pause(pause) {
                return None;
            }
            match self.hooks.load(lost) {
                Ok(model) => {
                    tracing::warn!("the model was reloaded after a failure");
                    return Some(self.scheduler(model, jobs));
                }
                Err(problem) => {
                    tracing::error!("the model cannot be reloaded: {problem}");
                    // Clients should not wait through all attempts.
                    self.fail(&problem);
                }
            }
        }
        None
    }

    /// Queues commands for `time`. Returns false if the channel was closed.
    fn pause(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            match self.channel.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(command) => self.queue.push_back(command),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// Runs steps while the scheduler has work, and waits for commands otherwise.
    fn serve(&mut self, scheduler: &mut Scheduler) -> WorkerEnd {
        let (mut busy, mut failures) = (!scheduler.is_idle(), 0);
        loop {
            if !busy && !self.closed && self.queue.is_empty() {
                let Some(command) = self.channel.recv() else { return WorkerEnd::stopped(scheduler) };
                self.queue.push_back(command);
                self.hooks.woke();
            }
            // The channel is checked before each step, so that dropping all handles ends the worker
            // even while jobs run.
            if !self.receive() {
                return WorkerEnd::stopped(scheduler);
            }
            let commands = self.queue.len();
            busy |= self.take(scheduler);
            // Only if commands were executed: a loan that waits for jobs changes nothing.
            if self.queue.len() < commands {
                self.hooks.observe(scheduler);
            }
            if self.ended || (self.closed && !busy && self.queue.is_empty()) {
                return WorkerEnd::stopped(scheduler);
            }
            if !busy {
                continue;
            }
            match self.step(scheduler) {
                Ok(more) => (busy, failures) = (more, 0),
                // The jobs of a failed step have failed. Other jobs may run on the same engine,
                // unless the next step fails too.
                Err(StepFault(StepFaultKind::Step, problem)) if failures + 1 < MAX_FAILURES => {
                    failures += 1;
                    tracing::error!("a step failed: {problem}");
                }
                Err(StepFault(kind, problem)) => return self.fault(kind, problem),
            }
            self.hooks.after_step(scheduler, !busy);
            self.hooks.observe(scheduler);
            self.send_last_events();
        }
    }

    /// Queues the commands in the channel. Returns false if the channel was closed.
    fn receive(&mut self) -> bool {
        loop {
            match self.channel.try_recv() {
                Ok(command) => self.queue.push_back(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Executes queued commands, in order. The engine is lent once all earlier jobs have ended, and
    /// later commands wait for that. Returns whether a job was submitted.
    fn take(&mut self, scheduler: &mut Scheduler) -> bool {
        let mut took = false;
        while let Some(command) = self.queue.pop_front() {
            match command {
                WorkerCommand::Submit(submission) => {
                    self.accept(scheduler, *submission);
                    took = true;
                }
                WorkerCommand::Lend(loan) => match scheduler.lend_engine(loan.tokens) {
                    Some(engine) => {
                        let EngineLoan { cancel, work, .. } = loan;
                        let own = engine.set_cancel_token(cancel);
                        // The engine's token is restored even if the work panics.
                        guarded(|| work(&mut *engine));
                        engine.set_cancel_token(own);
                    }
                    None => {
                        // Jobs run. Later commands must not overtake the loan.
                        self.queue.push_front(WorkerCommand::Lend(loan));
                        return took;
                    }
                },
                WorkerCommand::Between(work) => guarded(|| work(scheduler)),
                WorkerCommand::Close => {
                    scheduler.close();
                    self.closed = true;
                }
                WorkerCommand::End(problem) => {
                    self.fail(&problem);
                    self.ended = true;
                    return took;
                }
            }
        }
        took
    }

    fn accept(&mut self, scheduler: &mut Scheduler, submission: JobSubmission) {
        let JobSubmission { job, choices, receiver } = submission;
        // The client has disconnected while the job was in the channel.
        if receiver.is_gone() {
            return;
        }
        match scheduler.submit_choices(job, choices) {
            Ok(ids) => {
                let receiver: Rc<dyn JobReceiver> = Rc::from(receiver);
                for (choice, id) in ids.iter().enumerate() {
                    self.routes.insert(*id, (Rc::clone(&receiver), choice));
                }
                receiver.accepted(scheduler.canceller(), ids);
            }
            Err(refusal) => receiver.refused(refusal),
        }
    }

    fn step(&mut self, scheduler: &mut Scheduler) -> Result<bool, StepFault> {
        let (routes, hooks) = (&mut self.routes, &mut *self.hooks);
        let last_events = &mut self.last_events;
        let mut listener = |id: JobId, event: JobEvent| {
            // Final events wait until the statistics were observed; see `send_last_events`.
            if event.is_last() {
                let route = routes.remove(&id);
                last_events.extend(route.map(|(receiver, choice)| (receiver, choice, event)));
            } else if let Some((receiver, choice)) = routes.get(&id) {
                receiver.event(*choice, event);
            }
        };
        // Unwind-safe: after a panic, the engine and the scheduler are dropped.
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            hooks.before_step(scheduler);
            scheduler.step(&mut listener)
        }));
        match stepped {
            Ok(Ok(more)) => Ok(more),
            Ok(Err(error)) => {
                let kind = if error.is_lost() { StepFaultKind::Lost } else { StepFaultKind::Step };
                Err(StepFault(kind, error.to_string()))
            }
            Err(panic) => Err(StepFault(StepFaultKind::Panic, panic_text(&*panic).to_owned())),
        }
    }

    /// Sends the final events of a step. Called after the hooks have observed the statistics: a
    /// client that has its answer must not find the job among the running ones.
    fn send_last_events(&mut self) {
        for (receiver, choice, event) in self.last_events.drain(..) {
            receiver.event(choice, event);
        }
    }

    /// Fails all jobs, except those that outlive their device.
    fn fault(&mut self, kind: StepFaultKind, problem: String) -> WorkerEnd {
        // The hook runs before receivers learn of the fault: they must not find the model ready.
        let again = self.hooks.faulted(&problem);
        self.send_last_events();
        let lost = kind == StepFaultKind::Lost;
        if !(lost && self.outlives_device) {
            let what = if kind == StepFaultKind::Panic { "the engine panicked" } else { "a step failed" };
            tracing::error!("{what}: {problem}");
            self.fail(&problem);
        }
        WorkerEnd::Fault { lost: lost.then_some(problem), again }
    }

    fn fail(&mut self, problem: &str) {
        for (_, (receiver, choice)) in self.routes.drain() {
            receiver.event(choice, JobEvent::Failed(JobError::Engine(problem.to_owned())));
        }
    }
}

/// Runs work of a caller. A panic drops the closure, and with it the sender of its result, so that
/// the caller notices.
fn guarded(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        tracing::error!("work between two steps panicked: {}", panic_text(&*panic));
    }
}
