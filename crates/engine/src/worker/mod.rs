//! The thread of a model: it owns the scheduler, takes jobs from a channel, reports their events, and loads the model again after a fault.
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

/// Receives what becomes of a submission, on the worker's thread: it must not block. If it is dropped before the last event, the worker has ended.
pub trait JobReceiver: Send {
    /// Whether no caller waits for the answers any more: then the job does not begin.
    fn is_gone(&self) -> bool {
        false
    }

    /// The scheduler has taken the job and its further choices, whose ids are `jobs`.
    fn accepted(&self, canceller: Canceller, jobs: Vec<JobId>);

    /// The scheduler has refused it. No event follows.
    fn refused(&self, refusal: Refusal);

    /// An event of the job (`choice` 0) or of a further choice.
    fn event(&self, choice: usize, event: JobEvent);
}

/// A loaded model, for a worker.
pub struct WorkerModel {
    /// The engine.
    pub engine: Engine,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// How its jobs are scheduled.
    pub options: SchedulerOptions,
}

/// What a worker calls on its thread.
pub trait WorkerHooks: Send {
    /// Loads the model, at first and after each fault. `lost`: why the device is gone that had the model before.
    ///
    /// # Errors
    /// Why it cannot be loaded. The first time, the worker ends; after a fault it tries again.
    fn load(&mut self, lost: Option<&str>) -> Result<WorkerModel, String>;

    /// A loaded model takes jobs now.
    fn ready(&mut self, scheduler: &mut Scheduler) {
        let _ = scheduler;
    }

    /// The statistics of the scheduler may have changed: it has taken jobs, or run a step or other work.
    fn observe(&mut self, scheduler: &mut Scheduler) {
        let _ = scheduler;
    }

    /// The worker has waited for a command.
    fn woke(&mut self) {}

    /// A step begins. A panic here counts as one of the step.
    fn before_step(&mut self, scheduler: &mut Scheduler) {
        let _ = scheduler;
    }

    /// A step has ended; `idle`: no work is left.
    fn after_step(&mut self, scheduler: &mut Scheduler, idle: bool) {
        let _ = (scheduler, idle);
    }

    /// The engine cannot go on; the jobs hear so next. Returns whether the model is loaded again, or the worker ends.
    fn faulted(&mut self, problem: &str) -> bool {
        let _ = problem;
        true
    }
}
