//! The thread of a model: the order of its work, how it ends, and panics after which the model is
//! loaded again.

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

/// Maximum time for an event that has to happen. Loading the demo model counts too.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The number of a job, and an event of it in words.
type Report = (usize, String);

/// Reports the first token and the end of a job.
struct ReportingReceiver {
    job: usize,
    sender: Sender<Report>,
}

impl ReportingReceiver {
    fn report(&self, what: String) {
        // A test that has failed has dropped the receiver.
        let _ = self.sender.send((self.job, what));
    }
}

impl JobReceiver for ReportingReceiver {
    fn accepted(&self, _canceller: Canceller, jobs: Vec<JobId>) {
        assert_eq!(jobs.len(), 1);
    }

    fn refused(&self, refusal: Refusal) {
        self.report(refusal.to_string());
    }

    fn event(&self, choice: usize, event: JobEvent) {
        assert_eq!(choice, 0);
        match event {
            JobEvent::Finished { reason: StopReason::Length, usage, .. } => {
                self.report(format!("{} tokens", usage.completion));
            }
            JobEvent::Failed(JobError::Engine(problem)) => self.report(problem),
            JobEvent::Started { .. } => self.report("started".into()),
            event if event.is_last() => self.report(format!("{event:?}")),
            _ => {}
        }
    }
}

/// Loads the demo model, and panics before a step while `panics` is not 0.
#[derive(Default)]
struct Hooks {
    panics: Arc<Mutex<usize>>,
    loads: Arc<Mutex<usize>>,
    /// Number of loads that succeed. Later ones fail.
    good_loads: usize,
    faulted: bool,
    /// Number of running jobs when the statistics were last observed.
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
    sender: Sender<Report>,
    reports: Receiver<Report>,
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
        let (sender, reports) = channel();
        TestWorker { commands, thread, sender, reports, panics, loads, running }
    }

    /// Submits a job of `tokens` tokens.
    fn submit(&self, number: usize, tokens: usize) {
        let (_, tokenizer) = engine(64, 64);
        let job = job(&tokenizer, prompt(1, 20), tokens);
        let receiver = Box::new(ReportingReceiver { job: number, sender: self.sender.clone() });
        self.commands.submit(JobSubmission { job, choices: Vec::new(), receiver }).unwrap();
    }

    fn next_report(&self) -> Report {
        self.reports.recv_timeout(TIMEOUT).unwrap()
    }

    fn expect_report(&self, job: usize, what: &str) {
        assert_eq!(self.next_report(), (job, what.to_owned()));
    }

    /// Checks that the thread ends without a panic.
    fn expect_end(self) {
        // A thread cannot be joined with a timeout, so that another thread joins it.
        let (ended, end) = channel();
        std::thread::spawn(move || ended.send(self.thread.join().is_ok()));
        assert_eq!(end.recv_timeout(TIMEOUT), Ok(true));
    }
}

#[test]
fn an_engine_is_lent_in_the_order_of_the_commands() {
    let worker = TestWorker::start(1);
    worker.submit(1, 30);
    let sender = worker.sender.clone();
    let work = move |engine: &mut latent_engine::Engine| {
        sender.send((0, format!("lent with {} free blocks", engine.kv_cache().free_blocks() > 0))).unwrap();
        // A panic in lent work must not end the thread.
        panic!("work of the test");
    };
    let loan = EngineLoan { tokens: 64, cancel: CancelToken::new(), work: Box::new(work) };
    worker.commands.send(WorkerCommand::Lend(loan)).unwrap();
    let sender = worker.sender.clone();
    let between = move |scheduler: &mut Scheduler| {
        assert!(scheduler.is_idle());
        sender.send((0, "between".into())).unwrap();
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
        worker.expect_report(job, what);
    }
    assert_eq!(worker.commands.queued(), 0);
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.expect_end();
}

#[test]
fn a_closed_worker_runs_its_jobs_to_their_ends_and_refuses_others() {
    let worker = TestWorker::start(1);
    worker.submit(1, 30);
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.submit(2, 1);
    // The refusal of the second job may come before or after the events of the first.
    let mut reports = [worker.next_report(), worker.next_report(), worker.next_report()];
    reports.sort();
    let expected = [(1, "30 tokens"), (1, "started"), (2, "the server is shutting down")];
    assert_eq!(reports, expected.map(|(job, what)| (job, what.to_owned())));
    worker.expect_end();
}

/// Reports how many jobs the statistics show as running when the last event of a job arrives.
struct RunningAtEnd {
    running: Arc<Mutex<usize>>,
    sender: Sender<Report>,
}

impl JobReceiver for RunningAtEnd {
    fn accepted(&self, _canceller: Canceller, _jobs: Vec<JobId>) {}

    fn refused(&self, refusal: Refusal) {
        self.sender.send((0, refusal.to_string())).unwrap();
    }

    fn event(&self, _choice: usize, event: JobEvent) {
        if event.is_last() {
            let running = *self.running.lock().unwrap();
            self.sender.send((0, format!("{running} running"))).unwrap();
        }
    }
}

#[test]
fn statistics_do_not_show_a_job_whose_last_event_was_sent() {
    let worker = TestWorker::start(1);
    let (_, tokenizer) = engine(64, 64);
    let receiver =
        Box::new(RunningAtEnd { running: Arc::clone(&worker.running), sender: worker.sender.clone() });
    let job = job(&tokenizer, prompt(1, 20), 5);
    worker.commands.submit(JobSubmission { job, choices: Vec::new(), receiver }).unwrap();
    worker.expect_report(0, "0 running");
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.expect_end();
}

#[test]
fn a_worker_that_is_ended_fails_its_jobs_with_the_reason() {
    let worker = TestWorker::start(1);
    worker.submit(1, 400);
    worker.expect_report(1, "started");
    worker.commands.send(WorkerCommand::End("no time is left".into())).unwrap();
    worker.expect_report(1, "no time is left");
    worker.expect_end();
}

#[test]
fn ending_the_last_handle_drops_the_jobs() {
    let worker = TestWorker::start(1);
    worker.submit(1, 400);
    worker.expect_report(1, "started");
    let TestWorker { commands, thread, reports, sender, .. } = worker;
    commands.end();
    drop(sender);
    thread.join().unwrap();
    // The job's receiver was dropped without a last event: the channel is closed and empty.
    assert_eq!(reports.recv_timeout(TIMEOUT).ok(), None);
}

#[test]
fn after_a_panic_the_jobs_fail_and_the_model_is_loaded_again() {
    let worker = TestWorker::start(2);
    *worker.panics.lock().unwrap() = 1;
    worker.submit(1, 5);
    worker.expect_report(1, "a step of the test");
    worker.submit(2, 5);
    worker.expect_report(2, "started");
    worker.expect_report(2, "5 tokens");
    assert_eq!(*worker.loads.lock().unwrap(), 2);
    worker.commands.send(WorkerCommand::Close).unwrap();
    worker.expect_end();
}

#[test]
fn a_model_that_cannot_be_loaded_ends_its_worker() {
    let worker = TestWorker::start(0);
    let (commands, loads) = (worker.commands.clone(), Arc::clone(&worker.loads));
    worker.expect_end();
    assert_eq!(*loads.lock().unwrap(), 1);
    assert_eq!(commands.send(WorkerCommand::Close), Err(latent_engine::worker::WorkerGone));
}
