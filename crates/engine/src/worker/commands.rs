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
    /// Receives the events of the job and its choices.
    pub receiver: Box<dyn JobReceiver>,
}

/// Work with the engine itself, after all earlier jobs have ended.
pub struct EngineLoan {
    /// Number of tokens that the work needs in the KV cache.
    pub tokens: usize,
    /// Cancels the steps of this work only.
    pub cancel: CancelToken,
    /// The work. It is dropped without a call if the engine has failed before.
    pub work: Box<dyn FnOnce(&mut Engine) + Send>,
}

/// A command to a worker.
pub enum WorkerCommand {
    /// Submit a job.
    Submit(Box<JobSubmission>),
    /// Lend the engine. Later commands wait until the work has ended.
    Lend(EngineLoan),
    /// Call a function between two steps.
    Between(Box<dyn FnOnce(&mut Scheduler) + Send>),
    /// Accept no more jobs, and end when all accepted jobs have ended.
    Close,
    /// End after the running step. The jobs fail with this error.
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
    /// Number of jobs in the channel.
    queued: AtomicUsize,
    /// The canceller of the current scheduler.
    canceller: Mutex<Canceller>,
}

impl WorkerCommands {
    /// Creates both ends of a channel.
    pub fn channel() -> (WorkerCommands, WorkerQueue) {
        let (sender, commands) = channel();
        let shared = Arc::<WorkerShared>::default();
        (WorkerCommands { sender, shared: Arc::clone(&shared) }, WorkerQueue { commands, shared })
    }

    /// Submits a job.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn submit(&self, submission: JobSubmission) -> Result<(), WorkerGone> {
        // Counted before it is sent: the worker may take the job, and decrement the counter, at any
        // time after that.
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

    /// Number of [submitted](Self::submit) jobs that the worker has not received yet.
    pub fn queued(&self) -> usize {
        self.shared.queued.load(Ordering::SeqCst)
    }

    /// Drops this handle, and stops the running step after its current phase. If the handle was the
    /// last, the worker ends; otherwise its next step runs the same tokens.
    pub fn end(self) {
        let WorkerCommands { sender, shared } = self;
        // Drop the sender first. Otherwise the worker could begin another step between the two
        // calls, before it sees the closed channel.
        drop(sender);
        shared.canceller.lock().unwrap_or_else(PoisonError::into_inner).stop_step();
    }
}

impl WorkerQueue {
    /// Waits for the next command. `None` if all handles were dropped.
    pub fn recv(&self) -> Option<WorkerCommand> {
        self.commands.recv().ok().inspect(|command| self.took(command))
    }

    /// Waits up to `limit` for the next command.
    pub(super) fn recv_timeout(&self, limit: Duration) -> Result<WorkerCommand, RecvTimeoutError> {
        self.commands.recv_timeout(limit).inspect(|command| self.took(command))
    }

    /// The next command, if the channel has one.
    pub(super) fn try_recv(&self) -> Result<WorkerCommand, TryRecvError> {
        self.commands.try_recv().inspect(|command| self.took(command))
    }

    fn took(&self, command: &WorkerCommand) {
        if matches!(command, WorkerCommand::Submit(_)) {
            self.shared.queued.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Sets the canceller that [`WorkerCommands::end`] uses.
    pub(super) fn set_canceller(&self, canceller: Canceller) {
        *self.shared.canceller.lock().unwrap_or_else(PoisonError::into_inner) = canceller;
    }
}
