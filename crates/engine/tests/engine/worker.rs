//! The thread of a model: order of its work, ends, and faults after which the model is loaded again.

use crate::support::jobs::{engine, job, prompt};
use latent_backend::CancelToken;
use latent_engine::StopReason;
use latent_engine::scheduler::{Canceller, JobError, JobEvent, JobId, Refusal, Scheduler, SchedulerOptions};
use latent_engine::worker::{
    EngineLoan, JobReceiver, JobSubmission, WorkerCommand, WorkerCommands, WorkerHooks, WorkerModel,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest that a test waits for something that has to happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// What became of a job, in words, with its number.
type Heard = (usize, String);

/// Reports the first token and the end of a job.
struct Told {
    job: usize,
    tell: Sender<Heard>,
}

impl Told {
    fn tell(&self, what: String) {
        // a test that has failed hears no more
        let _ = self.tell.send((self.job, what));
    }
}

impl JobReceiver for Told {
    fn accepted(&self, _canceller: Canceller, jobs: Vec<JobId>) {
        assert_eq!(jobs.len(), 1);
    }

    fn refused(&self, refusal: Refusal) {
        self.tell(refusal.to_string());
    }

    fn event(&self, choice: usize, event: JobEvent) {
        assert_eq!(choice, 0);
        match event {
            JobEvent::Finished { reason: StopReason::Length, usage, .. } => {
                self.tell(format!("{} tokens", usage.completion));
            }
            JobEvent::Failed(JobError::Engine(problem)) => self.tell(problem),
            JobEvent::Started { .. } => self.tell("started".into()),
            event if event.is_last() => self.tell(format!("{event:?}")),
            _ => {}
        }
    }
}

/// Loads the demo model, and panics before a step when it is told to.
#[derive(Default)]
struct Hooks {
    panics: Arc<Mutex<usize>>,
    loads: Arc<Mutex<usize>>,
    /// Loads that succeed; the others fail.
    good_loads: usize,
    faulted: bool,
    /// Jobs that ran when the statistics were last observed.
    running: Arc<Mutex<usize>>,
}

impl WorkerHooks for Hooks {
    fn load(&mut self, lost: Option<&str>) -> Result<WorkerModel, String> {
        assert_eq!(lost, None);
        *self.loads.lock().unwrap() += 1;
        if *self.loads.lock().unwrap() > self.good_loads {
            return Err("no model is left".into());
        }
        let (engine, tokenizer) = engine(512, 512);
        Ok(WorkerModel { engine, tokenizer, options: SchedulerOptions::default() })
    }

    fn ready(&mut self, _scheduler: &mut Scheduler) {
        self.faulted = false;
    }

    fn observe(&mut self, scheduler: &mut Scheduler) {
        *self.running.lock().unwrap() = scheduler.stats().running;
    }

    fn before_step(&mut self, _scheduler: &mut Scheduler) {
        assert!(!self.faulted);
        let mut panics = self.panics.lock().unwrap();
        if *panics > 0 {
            *panics -= 1;
            drop(panics);
            panic!("a step of the test");
        }
    }

    fn faulted(&mut self, problem: &str) -> bool {
        assert_eq!(problem, "a step of the test");
        self.faulted = true;
        true
    }
}

struct TestWorker {
    commands: WorkerCommands,
    thread: JoinHandle<()>,
    tell: Sender<Heard>,
    heard: Receiver<Heard>,
    panics: Arc<Mutex<usize>>,
    loads: Arc<Mutex<usize>>,
    running: Arc<Mutex<usize>>,
}

impl TestWorker {
    fn start(good_loads: usize) -> TestWorker {
        let (commands, queue) = WorkerCommands::channel();
        let hooks = Hooks { good_loads, ..Hooks::default() };
        let (panics, loads) = (Arc::clone(&hooks.panics), Arc::clone(&hooks.loads));
        let running = Arc::clone(&hooks.running);
        let thread = queue.start("test-model", hooks).unwrap();
        let (tell, heard) = channel();
        TestWorker { commands, thread, tell, heard, panics, loads, running }
    }

    /// Submits a job of `tokens` tokens.
    fn submit(&self, number: usize, tokens: usize) {
        let (_, tokenizer) = engine(64, 64);
        let job = job(&tokenizer, prompt(1, 20), tokens);
        let receiver = Box::new(Told { job: number, tell: self.tell.clone() });
        self.commands.submit(JobSubmission { job, choices: Vec::new(), receiver }).unwrap();
    }

    fn hear(&self) -> Heard {
        self.heard.recv_timeout(PATIENCE).unwrap()
    }

    fn hears(&self, job: usize, what: &str) {
        assert_eq!(self.hear(), (job, what.to_owned()));
    }

    /// Waits for the thread, of which nothing keeps it any longer.
    fn ends(self) {
        let (ended, end) = channel();
        std::thread::spawn(move || ended.send(self.thread.join().is_ok()));
        assert_eq!(end.recv_timeout(PATIENCE), Ok(true));
    }
}

#[test]
fn an_engine_is_lent_after_the_jobs_before_and_before_those_after() {
    let worker = TestWorker::start(1);
    worker.submit(1, 30);
    let tell = worker.tell.clone();
    let work = move |engine: &mut latent_engine::Engine| {
        tell.send((0, format!("lent with {} free blocks", engine.kv_cache().free_blocks() > 0))).unwrap();
        panic!("work of the test");
    };
    let loan = EngineLoan { tokens: 64, cancel: CancelToken::new(), work: Box::new(work) };
    worker.commands.send(WorkerCommand::Lend(loan)).unwrap();
    let tell = worker.tell.clone();
    let between = move |scheduler: &mut Scheduler| {
        assert!(scheduler.is_idle());
        tell.send((0, "between".into())).unwrap();
    };
    worker.commands.send(WorkerCommand::Between(Box::new(between))).unwrap();
    worker.submit(2, 3);
    for (job, what) in [
        (1, "started"),
        (1, "30 tokens"),
        (0, "lent with true free blocks"),
        (0, "between"),
        (2, "started"),
        (2, "3 tokens"),
    ] {
        worker.hears(job, what);
    }
    assert_eq!(worker.commands.queued(), 0);
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.ends();
}

#[test]
fn a_closed_worker_runs_its_jobs_to_their_ends_and_refuses_others() {
    let worker = TestWorker::start(1);
    worker.submit(1, 30);
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.submit(2, 1);
    let mut heard = [worker.hear(), worker.hear(), worker.hear()];
    heard.sort();
    let expected = [(1, "30 tokens"), (1, "started"), (2, "the server is shutting down")];
    assert_eq!(heard, expected.map(|(job, what)| (job, what.to_owned())));
    worker.ends();
}

/// Reports how many jobs the statistics show as running when the last event of a job arrives.
struct RunningAtEnd {
    running: Arc<Mutex<usize>>,
    tell: Sender<Heard>,
}

impl JobReceiver for RunningAtEnd {
    fn accepted(&self, _canceller: Canceller, _jobs: Vec<JobId>) {}

    fn refused(&self, refusal: Refusal) {
        self.tell.send((0, refusal.to_string())).unwrap();
    }

    fn event(&self, _choice: usize, event: JobEvent) {
        if event.is_last() {
            let running = *self.running.lock().unwrap();
            self.tell.send((0, format!("{running} running"))).unwrap();
        }
    }
}

#[test]
fn statistics_do_not_show_a_job_whose_last_event_was_sent() {
    let worker = TestWorker::start(1);
    let (_, tokenizer) = engine(64, 64);
    let receiver = Box::new(RunningAtEnd { running: Arc::clone(&worker.running), tell: worker.tell.clone() });
    let job = job(&tokenizer, prompt(1, 20), 5);
    worker.commands.submit(JobSubmission { job, choices: Vec::new(), receiver }).unwrap();
    worker.hears(0, "0 running");
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.ends();
}

#[test]
fn a_worker_that_is_ended_fails_its_jobs_with_the_reason() {
    let worker = TestWorker::start(1);
    worker.submit(1, 400);
    worker.hears(1, "started");
    worker.commands.send(WorkerCommand::End("no time is left".into())).unwrap();
    worker.hears(1, "no time is left");
    worker.ends();
}

#[test]
fn a_worker_whose_last_handle_ends_cuts_its_jobs_off() {
    let worker = TestWorker::start(1);
    worker.submit(1, 400);
    worker.hears(1, "started");
    let TestWorker { commands, thread, heard, tell, .. } = worker;
    commands.end();
    drop(tell);
    thread.join().unwrap();
    // its receiver was dropped without a last event
    assert_eq!(heard.recv_timeout(PATIENCE).ok(), None);
}

#[test]
fn after_a_panic_the_jobs_fail_and_the_model_is_loaded_again() {
    let worker = TestWorker::start(2);
    *worker.panics.lock().unwrap() = 1;
    worker.submit(1, 5);
    worker.hears(1, "a step of the test");
    worker.submit(2, 5);
    worker.hears(2, "started");
    worker.hears(2, "5 tokens");
    assert_eq!(*worker.loads.lock().unwrap(), 2);
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.ends();
}

#[test]
fn a_model_that_cannot_be_loaded_ends_its_worker() {
    let worker = TestWorker::start(0);
    let (commands, loads) = (worker.commands.clone(), Arc::clone(&worker.loads));
    worker.ends();
    assert_eq!(*loads.lock().unwrap(), 1);
    assert_eq!(commands.send(WorkerCommand::Close), Err(latent_engine::worker::WorkerGone));
}
