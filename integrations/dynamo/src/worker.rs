//! The thread that owns the scheduler: it takes jobs from a channel and tells what becomes of them, and tells the router what is cached and how
//! full the cache is.

use crate::error::cut_off;
use crate::handle::Handle;
use crate::kv_events::KvEvents;
use crate::load::{self, Served};
use crate::load_report::LoadReport;
use crate::options::Options;
use crate::request::Prepared;
use dynamo_backend_common::{KvEventPublisher, SnapshotPublisher};
use latent_engine::scheduler::{JobEvent, JobId, Refusal, Scheduler};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

/// What a request hears.
pub(crate) enum Notice {
    Refused(Refusal),
    Event(JobEvent),
    /// There is no more of the answer: the engine has ended, for this reason.
    Ended(String),
}

/// A job for the scheduler, and the receivers of its events.
pub(crate) struct Submission {
    pub(crate) prepared: Prepared,
    pub(crate) handle: Handle,
    pub(crate) notices: UnboundedSender<Notice>,
}

pub(crate) enum Command {
    Submit(Box<Submission>),
    /// Publish KV cache events here.
    TellBlocks(Arc<KvEventPublisher>),
    /// Publish the load of the cache here.
    TellLoad(Arc<SnapshotPublisher>),
    /// No more jobs follow; running jobs have this much time to end.
    Close(Duration),
}

/// What the model is like, once it is loaded.
pub(crate) struct Ready {
    pub(crate) served: Served,
    pub(crate) blocks: usize,
    pub(crate) block_tokens: usize,
}

/// A thread that has been started.
pub(crate) struct Started {
    pub(crate) commands: Sender<Command>,
    /// Hears whether the model was loaded.
    pub(crate) ready: oneshot::Receiver<Result<Ready, String>>,
    /// Hears of a fault of the engine after that; closed without one when the thread ends as it should.
    pub(crate) fault: oneshot::Receiver<String>,
    pub(crate) thread: JoinHandle<()>,
}

/// Called before each step; tests make it panic.
pub type Hook = Arc<dyn Fn() + Send + Sync>;

/// Steps that may fail one after the other before the engine counts as broken.
const FAILURES: usize = 2;

/// Starts the thread, which loads the model and runs it.
pub(crate) fn start(options: Options, before_step: Option<Hook>) -> std::io::Result<Started> {
    let (commands, received) = channel();
    let (tell_ready, ready) = oneshot::channel();
    let (tell_fault, fault) = oneshot::channel();
    let run = move || {
        let loaded = catch_unwind(AssertUnwindSafe(|| load::load(&options)))
            .unwrap_or_else(|panic| Err(anyhow::anyhow!("{}", latent_types::panic_text(&*panic))));
        let (scheduler, served) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                // the receiver may have been dropped
                let _ = tell_ready.send(Err(format!("{error:#}")));
                return;
            }
        };
        let stats = scheduler.stats();
        let ready = Ready { served, blocks: stats.blocks, block_tokens: stats.block_tokens };
        if tell_ready.send(Ok(ready)).is_err() {
            return;
        }
        if let Err(problem) = Worker::new(scheduler, received, before_step).run() {
            tracing::error!("the engine has failed: {problem}");
            let _ = tell_fault.send(problem);
        }
    };
    let thread = std::thread::Builder::new().name("engine".into()).spawn(run)?;
    Ok(Started { commands, ready, fault, thread })
}

/// What went wrong with a step.
enum Fault {
    Step(String),
    /// A panic left the engine in an unknown state.
    Panic(String),
}

struct Worker {
    scheduler: Scheduler,
    commands: Receiver<Command>,
    routes: HashMap<JobId, UnboundedSender<Notice>>,
    blocks: KvEvents,
    load: LoadReport,
    /// When those that still run are cut off, once no more come.
    closing: Option<(Instant, Duration)>,
    before_step: Option<Hook>,
}

impl Worker {
    fn new(scheduler: Scheduler, commands: Receiver<Command>, before_step: Option<Hook>) -> Worker {
        Worker {
            scheduler,
            commands,
            routes: HashMap::new(),
            blocks: KvEvents::default(),
            load: LoadReport::default(),
            closing: None,
            before_step,
        }
    }

    /// Steps while there is work, sleeps while there is none. An error is a fault of the engine, of which all jobs have heard.
    fn run(mut self) -> Result<(), String> {
        let (mut busy, mut failures) = (false, 0);
        loop {
            busy |= self.take(busy);
            if let Some((end, patience)) = self.closing {
                if !busy {
                    self.scheduler.flush_disk();
                    return Ok(());
                }
                if Instant::now() >= end {
                    self.fail_all(&cut_off(patience));
                    return Ok(());
                }
            }
            if !busy {
                continue;
            }
            match self.step() {
                Ok(more) => (busy, failures) = (more, 0),
                Err(Fault::Step(problem)) if failures + 1 < FAILURES => {
                    failures += 1;
                    tracing::error!("a step failed: {problem}");
                }
                Err(Fault::Step(problem) | Fault::Panic(problem)) => {
                    self.fail_all(&problem);
                    return Err(problem);
                }
            }
            self.blocks.tell(self.scheduler.take_prefix_changes());
            self.load.tell(&self.scheduler.stats());
        }
    }

    /// Takes all pending commands; if the engine is idle, waits for one first. Returns whether a
    /// job was among them.
    fn take(&mut self, busy: bool) -> bool {
        let mut took = false;
        loop {
            let wait = !busy && !took && self.closing.is_none();
            let command = if wait {
                self.commands.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.commands.try_recv()
            };
            match command {
                Ok(Command::Submit(submission)) => {
                    self.submit(*submission);
                    took = true;
                }
                Ok(Command::TellBlocks(publisher)) => {
                    self.scheduler.watch_prefixes();
                    self.blocks.to(publisher);
                }
                Ok(Command::TellLoad(publisher)) => {
                    self.load.to(publisher);
                    self.load.tell(&self.scheduler.stats());
                }
                Ok(Command::Close(patience)) => self.close(patience),
                Err(TryRecvError::Empty) => return took,
                Err(TryRecvError::Disconnected) => {
                    self.close(Duration::ZERO);
                    return took;
                }
            }
        }
    }

    fn close(&mut self, patience: Duration) {
        self.scheduler.close();
        self.closing.get_or_insert((Instant::now() + patience, patience));
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { prepared: Prepared { job, namespace, .. }, handle, notices } = submission;
        if handle.is_gone() {
            return;
        }
        self.blocks.enter(job.salt, namespace);
        match self.scheduler.submit(job) {
            Ok(id) => {
                self.routes.insert(id, notices);
                handle.taken(self.scheduler.canceller(), id);
            }
            Err(refusal) => {
                // the receiver may have been dropped
                let _ = notices.send(Notice::Refused(refusal));
            }
        }
    }

    fn step(&mut self) -> Result<bool, Fault> {
        let routes = &mut self.routes;
        let mut listener = |id: JobId, event: JobEvent| {
            let last = event.is_last();
            if let Some(notices) = routes.get(&id) {
                let _ = notices.send(Notice::Event(event));
            }
            if last {
                routes.remove(&id);
            }
        };
        let (scheduler, hook) = (&mut self.scheduler, self.before_step.as_deref());
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            if let Some(hook) = hook {
                hook();
            }
            scheduler.step(&mut listener)
        }));
        match stepped {
            Ok(stepped) => stepped.map_err(|error| Fault::Step(error.to_string())),
            Err(panic) => Err(Fault::Panic(latent_types::panic_text(&*panic).to_owned())),
        }
    }

    /// Ends all jobs: the frontend asks another worker.
    fn fail_all(&mut self, problem: &str) {
        for (_, notices) in self.routes.drain() {
            let _ = notices.send(Notice::Ended(problem.to_owned()));
        }
    }
}
