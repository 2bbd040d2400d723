//! The worker thread of a model. It owns the scheduler, receives jobs from a channel, reports their
//! events, and reloads the model after a fault.
//!
//! * `commands.rs`: the channel.
//! * `run.rs`: the loop.

mod commands;
mod run;

pub use commands::{EngineLoan, JobSubmission, WorkerCommand, WorkerCommands, WorkerGone, WorkerQueue};

use crate::engine::Engine;
use crate::scheduler::{Canceller, JobEvent, JobId, Refusal, Scheduler, SchedulerOptions};
use latent_text::Tokenizer;
use std::sync::Arc;

/// Receives the events of a submission. It is called on the worker's thread and must not block. If
/// it is dropped before the final event, the worker has ended.
pub trait JobReceiver: Send {
    /// Whether no caller waits for the answers any more. The job is not started then.
    fn is_gone(&self) -> bool {
        false
    }

    /// Called when the scheduler has accepted the job and its further choices. `jobs` are their
    /// ids.
    fn accepted(&self, canceller: Canceller, jobs: Vec<JobId>);

    /// Called when the scheduler has refused the job. No event follows.
    fn refused(&self, refusal: Refusal);

    /// Called with each event of the job (`choice` 0) or of a further choice.
    fn event(&self, choice: usize, event: JobEvent);
}

/// A loaded model, for a worker.
pub struct WorkerModel {
    /// The engine.
    pub engine: Engine,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Options of the scheduler.
    pub options: SchedulerOptions,
}

/// Callbacks of a worker, on its thread.
pub trait WorkerHooks: Send {
    /// Loads the model, at the start and after each fault. `lost` is the error of the model's
    /// previous device, if that is lost.
    ///
    /// # Errors
    /// Why the model cannot be loaded. At the start, the worker ends. After a fault, it tries
    /// again.
    fn load(&mut self, lost: Option<&str>) -> Result<WorkerModel, String>;

    /// Called when a model was loaded, before it gets jobs.
    fn ready(&mut self, scheduler: &mut Scheduler) {
        let _ = scheduler;
    }

    /// Called when the statistics of the scheduler may have changed: it has accepted jobs, or run a
    /// step or other work.
    fn observe(&mut self, scheduler: &mut Scheduler) {
        let _ = scheduler;
    }

    /// Called when an idle worker has received a command.
    fn woke(&mut self) {}

    /// Called before a step. A panic here counts as one of the step.
    fn before_step(&mut self, scheduler: &mut Scheduler) {
        let _ = scheduler;
    }

    /// Called after a step. `idle`: no work is left.
    fn after_step(&mut self, scheduler: &mut Scheduler, idle: bool) {
        let _ = (scheduler, idle);
    }

    /// Called when the engine has failed, before the jobs get their final events. Returns whether
    /// to reload the model. If not, the worker ends.
    fn faulted(&mut self, problem: &str) -> bool {
        let _ = problem;
        true
    }
}
