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

/// Pauses before the attempts to load the model again after a fault.
const RELOADS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(2), Duration::from_secs(10)];

/// Steps that may fail one after the other before the model is loaded again.
const FAILURES: usize = 2;

struct WorkerLoop<'h> {
    channel: WorkerQueue,
    hooks: &'h mut dyn WorkerHooks,
    /// Commands that wait, in order.
    queue: VecDeque<WorkerCommand>,
    routes: HashMap<JobId, (Rc<dyn JobReceiver>, usize)>,
    /// Last events of the jobs that the running step has ended.
    last_events: Vec<(Rc<dyn JobReceiver>, usize, JobEvent)>,
    /// No more jobs come.
    closed: bool,
    /// Not even those that run go on.
    ended: bool,
    /// Whether jobs outlive a lost device.
    outlives_device: bool,
}

/// Why the loop over one loaded model ends.
enum WorkerEnd {
    Stopped,
    Fault {
        /// Why the device is gone, if that is the fault.
        lost: Option<String>,
        /// Whether the model is loaded again.
        again: bool,
    },
}

impl WorkerEnd {
    /// The end of a scheduler that is dropped next: what it has to write to disk is written.
    fn stopped(scheduler: &mut Scheduler) -> WorkerEnd {
        if scheduler.is_idle() {
            scheduler.flush_disk();
        }
        WorkerEnd::Stopped
    }
}

/// What went wrong with a step, and the text of it.
struct StepFault(StepFaultKind, String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepFaultKind {
    /// The device is gone.
    Lost,
    Step,
    Panic,
}

impl WorkerQueue {
    /// Starts the thread of a worker, which loads the model and runs it.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn start(self, name: &str, mut hooks: impl WorkerHooks + 'static) -> std::io::Result<JoinHandle<()>> {
        let run = move || run(self, &mut hooks);
        std::thread::Builder::new().name(name.to_owned()).stack_size(KERNEL_STACK).spawn(run)
    }
}

/// Loads the model and runs it until no more commands come.
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
    /// Schedules jobs on a model, first those that ran where it was before.
    fn scheduler(&mut self, model: WorkerModel, jobs: Option<SuspendedJobs>) -> Scheduler {
        let WorkerModel { engine, tokenizer, options } = model;
        self.outlives_device = options.outlives_device;
        let mut scheduler = match jobs {
            Some(jobs) => Scheduler::resume(engine, tokenizer, options, jobs),
            None => Scheduler::new(engine, tokenizer, options),
        };
        self.channel.set_canceller(scheduler.canceller());
        self.hooks.ready(&mut scheduler);
        scheduler
    }

    /// Releases everything that a scheduler has, except the jobs that outlive a lost device.
    fn take_apart(&self, scheduler: Scheduler, lost: Option<&str>) -> Option<SuspendedJobs> {
        let Some(problem) = lost.filter(|_| self.outlives_device) else {
            // what failed may fail again while it is taken apart
            let _ = catch_unwind(AssertUnwindSafe(|| drop(scheduler)));
            return None;
        };
        let (engine, jobs) = scheduler.suspend();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
        let count = jobs.ids().count();
        tracing::error!("{problem}; the model is loaded elsewhere, where {count} requests continue");
        Some(jobs)
    }

    fn reload(&mut self, lost: Option<&str>, jobs: Option<SuspendedJobs>) -> Option<Scheduler> {
        for pause in RELOADS {
            if !self.pause(pause) {
                return None;
            }
            match self.hooks.load(lost) {
                Ok(model) => {
                    tracing::warn!("the model was loaded again after a fault");
                    return Some(self.scheduler(model, jobs));
                }
                Err(problem) => {
                    tracing::error!("the model cannot be loaded again: {problem}");
                    self.fail(&problem);
                }
            }
        }
        None
    }

    /// Waits for a time. Returns whether commands may still come.
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

    /// Steps while there is work, sleeps while there is none.
    fn serve(&mut self, scheduler: &mut Scheduler) -> WorkerEnd {
        let (mut busy, mut failures) = (!scheduler.is_idle(), 0);
        loop {
            if !busy && !self.closed && self.queue.is_empty() {
                let Some(command) = self.channel.recv() else { return WorkerEnd::stopped(scheduler) };
                self.queue.push_back(command);
                self.hooks.woke();
            }
            if !self.receive() {
                return WorkerEnd::stopped(scheduler);
            }
            let commands = self.queue.len();
            busy |= self.take(scheduler);
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
                Err(StepFault(StepFaultKind::Step, problem)) if failures + 1 < FAILURES => {
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

    /// Receives the commands that are here. Returns whether more may come.
    fn receive(&mut self) -> bool {
        loop {
            match self.channel.try_recv() {
                Ok(command) => self.queue.push_back(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Takes what was asked for, in order: the engine is lent when the jobs before have ended, and later commands wait for that. Returns whether
    /// a job was among it.
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
                        guarded(|| work(&mut *engine));
                        engine.set_cancel_token(own);
                    }
                    None => {
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
            if event.is_last() {
                let route = routes.remove(&id);
                last_events.extend(route.map(|(receiver, choice)| (receiver, choice, event)));
            } else if let Some((receiver, choice)) = routes.get(&id) {
                receiver.event(*choice, event);
            }
        };
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

    /// Sends the last events of a step. Its statistics were observed before: a client that has its answer must not find the job among those
    /// that run.
    fn send_last_events(&mut self) {
        for (receiver, choice, event) in self.last_events.drain(..) {
            receiver.event(choice, event);
        }
    }

    /// Ends all jobs but those that outlive their device. Receivers must not find the model ready when they learn of it.
    fn fault(&mut self, kind: StepFaultKind, problem: String) -> WorkerEnd {
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

/// Runs work of a caller, who learns from what the work drops that it has panicked.
fn guarded(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
        tracing::error!("work between two steps panicked: {}", panic_text(&*panic));
    }
}
