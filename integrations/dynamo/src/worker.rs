//! The engine's thread: what it does for Dynamo besides running jobs. It reports to the router what
//! is cached and how full the cache is.

use crate::handle::Handle;
use crate::kv_events::KvEvents;
use crate::load::{self, Served};
use crate::load_report::LoadReport;
use crate::options::Options;
use crate::request::Prepared;
use dynamo_backend_common::{KvEventPublisher, SnapshotPublisher};
use latent_engine::scheduler::{Canceller, JobEvent, JobId, Refusal, Scheduler};
use latent_engine::worker::{
    JobReceiver, JobSubmission, WorkerCommand, WorkerCommands, WorkerGone, WorkerHooks, WorkerModel,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// What a request hears.
pub(crate) enum Notice {
    Refused(Refusal),
    Event(JobEvent),
}

/// What the model is like, once it is loaded.
pub(crate) struct Ready {
    pub(crate) served: Served,
    pub(crate) blocks: usize,
    pub(crate) block_tokens: usize,
}

/// A thread that has been started.
pub(crate) struct Started {
    pub(crate) worker: Worker,
    /// Hears whether the model was loaded.
    pub(crate) ready: oneshot::Receiver<Result<Ready, String>>,
    /// Hears of a fault of the engine after that; closed without one when the thread ends as it
    /// should.
    pub(crate) fault: oneshot::Receiver<String>,
    pub(crate) thread: JoinHandle<()>,
}

/// Called before each step; tests make it panic.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

/// What is reported to the router.
#[derive(Default)]
struct Reports {
    blocks: KvEvents,
    load: LoadReport,
}

/// A handle to the thread.
#[derive(Clone)]
pub(crate) struct Worker {
    commands: WorkerCommands,
    reports: Arc<Mutex<Reports>>,
}

fn locked(reports: &Mutex<Reports>) -> MutexGuard<'_, Reports> {
    reports.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Starts the thread, which loads the model and runs it.
    pub(crate) fn start(options: Options, before_step: Option<Hook>) -> std::io::Result<Started> {
        let (commands, queue) = WorkerCommands::channel();
        let (tell_ready, ready) = oneshot::channel();
        let (tell_fault, fault) = oneshot::channel();
        let worker = Worker { commands, reports: Arc::default() };
        let hooks = DynamoHooks {
            options,
            before_step,
            tell_ready: Some(tell_ready),
            tell_fault: Some(tell_fault),
            served: None,
            reports: Arc::clone(&worker.reports),
        };
        let thread = queue.start("engine", hooks)?;
        Ok(Started { worker, ready, fault, thread })
    }

    /// Submits a job. `notices` receives what becomes of it.
    pub(crate) fn submit(
        &self,
        prepared: Prepared,
        handle: Handle,
        notices: UnboundedSender<Notice>,
    ) -> Result<(), WorkerGone> {
        let Prepared { job, namespace, .. } = prepared;
        locked(&self.reports).blocks.enter(job.salt, namespace);
        let receiver = Box::new(RequestReceiver { handle, notices });
        self.commands.submit(JobSubmission { job, choices: Vec::new(), receiver })
    }

    /// Publishes KV cache events from now on.
    pub(crate) fn report_blocks(&self, publisher: Arc<KvEventPublisher>) -> Result<(), WorkerGone> {
        let reports = Arc::clone(&self.reports);
        let work = move |scheduler: &mut Scheduler| {
            scheduler.watch_prefixes();
            locked(&reports).blocks.to(publisher);
        };
        self.commands.send(WorkerCommand::Between(Box::new(work)))
    }

    /// Publishes the load of the cache from now on.
    pub(crate) fn report_load(&self, publisher: Arc<SnapshotPublisher>) -> Result<(), WorkerGone> {
        let reports = Arc::clone(&self.reports);
        let work = move |_: &mut Scheduler| locked(&reports).load.to(publisher);
        self.commands.send(WorkerCommand::Between(Box::new(work)))
    }

    /// Takes no more jobs; those that run may end.
    pub(crate) fn close(&self) {
        // one that has ended needs not hear it
        let _ = self.commands.send(WorkerCommand::Close);
    }

    /// Ends those that still run.
    pub(crate) fn end(&self, problem: String) {
        let _ = self.commands.send(WorkerCommand::End(problem));
    }
}

struct RequestReceiver {
    handle: Handle,
    notices: UnboundedSender<Notice>,
}

impl JobReceiver for RequestReceiver {
    fn is_gone(&self) -> bool {
        self.handle.is_gone()
    }

    fn accepted(&self, canceller: Canceller, jobs: Vec<JobId>) {
        jobs.into_iter().for_each(|job| self.handle.taken(canceller.clone(), job));
    }

    fn refused(&self, refusal: Refusal) {
        // the receiver may have been dropped
        let _ = self.notices.send(Notice::Refused(refusal));
    }

    fn event(&self, _choice: usize, event: JobEvent) {
        let _ = self.notices.send(Notice::Event(event));
    }
}

struct DynamoHooks {
    options: Options,
    before_step: Option<Hook>,
    tell_ready: Option<oneshot::Sender<Result<Ready, String>>>,
    tell_fault: Option<oneshot::Sender<String>>,
    /// Of a model that is not ready yet.
    served: Option<Served>,
    reports: Arc<Mutex<Reports>>,
}

impl WorkerHooks for DynamoHooks {
    fn load(&mut self, _lost: Option<&str>) -> Result<WorkerModel, String> {
        let loaded = catch_unwind(AssertUnwindSafe(|| load::load(&self.options)))
            .unwrap_or_else(|panic| Err(anyhow::anyhow!("{}", latent_types::panic_text(&*panic))));
        match loaded {
            Ok((model, served)) => {
                self.served = Some(served);
                Ok(model)
            }
            Err(error) => {
                let problem = format!("{error:#}");
                if let Some(tell) = self.tell_ready.take() {
                    // the receiver may have been dropped
                    let _ = tell.send(Err(problem.clone()));
                }
                Err(problem)
            }
        }
    }

    fn ready(&mut self, scheduler: &mut Scheduler) {
        let stats = scheduler.stats();
        if let (Some(tell), Some(served)) = (self.tell_ready.take(), self.served.take()) {
            let ready = Ready { served, blocks: stats.blocks, block_tokens: stats.block_tokens };
            let _ = tell.send(Ok(ready));
        }
    }

    fn observe(&mut self, scheduler: &mut Scheduler) {
        let mut reports = locked(&self.reports);
        reports.blocks.tell(scheduler.take_prefix_changes());
        reports.load.tell(&scheduler.stats());
    }

    fn before_step(&mut self, _scheduler: &mut Scheduler) {
        if let Some(hook) = &self.before_step {
            hook();
        }
    }

    /// The process ends, so that its supervisor starts another one; the frontend asks another
    /// worker meanwhile.
    fn faulted(&mut self, problem: &str) -> bool {
        if let Some(tell) = self.tell_fault.take() {
            let _ = tell.send(problem.to_owned());
        }
        false
    }
}
