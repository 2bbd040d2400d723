//! The channel to a worker.

use super::JobReceiver;
use crate::engine::Engine;
use crate::scheduler::{Canceller, Job, JobChoice, Scheduler};
use latent_backend::CancelToken;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A job for a worker.
pub struct JobSubmission {
    /// The job.
    pub job: Job,
    /// Further answers to its prompt.
    pub choices: Vec<JobChoice>,
    /// Receives what becomes of it.
    pub receiver: Box<dyn JobReceiver>,
}

/// Work with the engine itself, after the jobs before it have ended.
pub struct EngineLoan {
    /// Tokens that it puts into the KV cache.
    pub tokens: usize,
    /// Stops its steps, and no others.
    pub cancel: CancelToken,
    /// The work. It is dropped without a call if the engine has failed before.
    pub work: Box<dyn FnOnce(&mut Engine) + Send>,
}

/// What a worker is asked for.
pub enum WorkerCommand {
    /// An answer.
    Submit(Box<JobSubmission>),
    /// Work with the engine. Later commands wait for it.
    Lend(EngineLoan),
    /// Work between two steps.
    Between(Box<dyn FnOnce(&mut Scheduler) + Send>),
    /// No more jobs come: the worker ends when those that it has have ended.
    Close,
    /// The worker ends after the running step. Its jobs fail with this problem.
    End(String),
}

/// The worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine has failed or was closed: load the model again")]
pub struct WorkerGone;

/// Sends commands to a worker. When all clones are dropped, the worker ends at once.
#[derive(Clone)]
pub struct WorkerCommands {
    sender: Sender<WorkerCommand>,
    shared: Arc<WorkerShared>,
}

/// The worker's end of the channel.
pub struct WorkerQueue {
    commands: Receiver<WorkerCommand>,
    shared: Arc<WorkerShared>,
}

#[derive(Default)]
struct WorkerShared {
    /// Jobs in the channel.
    queued: AtomicUsize,
    /// Of the present scheduler.
    canceller: Mutex<Canceller>,
}

impl WorkerCommands {
    /// Both ends of a channel.
    pub fn channel() -> (WorkerCommands, WorkerQueue) {
        let (sender, commands) = channel();
        let shared = Arc::<WorkerShared>::default();
        (WorkerCommands { sender, shared: Arc::clone(&shared) }, WorkerQueue { commands, shared })
    }

    /// Asks for an answer.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn submit(&self, submission: JobSubmission) -> Result<(), WorkerGone> {
        self.shared.queued.fetch_add(1, Ordering::SeqCst);
        self.send(WorkerCommand::Submit(Box::new(submission)))
    }

    /// Sends a command.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn send(&self, command: WorkerCommand) -> Result<(), WorkerGone> {
        self.sender.send(command).map_err(|_| WorkerGone)
    }

    /// Jobs that were [submitted](Self::submit) and that the scheduler has not seen yet.
    pub fn queued(&self) -> usize {
        self.shared.queued.load(Ordering::SeqCst)
    }

    /// Drops this handle. If it was the last, the running step ends after its phase, and the worker with it.
    pub fn end(self) {
        let WorkerCommands { sender, shared } = self;
        // first the channel: the step that follows a stopped one must not begin
        drop(sender);
        shared.canceller.lock().unwrap_or_else(PoisonError::into_inner).stop_step();
    }
}

impl WorkerQueue {
    /// Waits for the next command, in place of a worker. None once no more can come.
    pub fn recv(&self) -> Option<WorkerCommand> {
        self.commands.recv().ok().inspect(|command| self.took(command))
    }

    /// The next command, which is waited for up to `limit`.
    pub(super) fn recv_timeout(&self, limit: Duration) -> Result<WorkerCommand, RecvTimeoutError> {
        self.commands.recv_timeout(limit).inspect(|command| self.took(command))
    }

    /// The next command, if one is here.
    pub(super) fn try_recv(&self) -> Result<WorkerCommand, TryRecvError> {
        self.commands.try_recv().inspect(|command| self.took(command))
    }

    fn took(&self, command: &WorkerCommand) {
        if matches!(command, WorkerCommand::Submit(_)) {
            self.shared.queued.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Sets what stops the steps.
    pub(super) fn set_canceller(&self, canceller: Canceller) {
        *self.shared.canceller.lock().unwrap_or_else(PoisonError::into_inner) = canceller;
    }
}
