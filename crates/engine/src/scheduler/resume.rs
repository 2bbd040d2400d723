//! Moves jobs to another engine. The KV cache of a lost device is lost too, so the jobs run their
//! tokens again.

use super::Scheduler;
use super::cancel::Canceller;
use super::fairness::Fairness;
use super::job::JobId;
use super::options::SchedulerOptions;
use super::stats::SchedulerStats;
use super::task::ScheduledJob;
use crate::cache::HashChain;
use crate::engine::Engine;
use latent_text::Tokenizer;
use std::sync::Arc;

impl Scheduler {
    /// Separates the jobs from the engine, and returns both.
    pub fn suspend(mut self) -> (Engine, SuspendedJobs) {
        for mut task in std::mem::take(&mut self.running) {
            task.usage.preemptions += 1;
            self.counts.preemptions += 1;
            task.reset();
            self.waiting.push(task);
        }
        // Waiting jobs may share rows of their leader's prompt, which are lost as well.
        self.waiting.iter_mut().for_each(ScheduledJob::reset);
        self.waiting.sort_by_key(|task| task.id);
        let Scheduler { engine, waiting, canceller, next_id, fairness, counts, closed, .. } = self;
        (engine, SuspendedJobs { waiting, canceller, next_id, fairness, counts, closed })
    }

    /// A scheduler that continues the jobs of another on an engine with the same model. Their
    /// [`Canceller`] handles remain valid.
    pub fn resume(
        engine: Engine,
        tokenizer: Arc<Tokenizer>,
        options: SchedulerOptions,
        jobs: SuspendedJobs,
    ) -> Scheduler {
        let SuspendedJobs { mut waiting, canceller, next_id, fairness, counts, closed } = jobs;
        let scheduler = Scheduler::new(engine, tokenizer, options);
        for task in &mut waiting {
            // Names of blocks include the cache id, which differs if the new engine computes rows
            // in another precision or layout.
            task.chain = HashChain::new(scheduler.cache_id, task.salt);
        }
        Scheduler { waiting, canceller, next_id, fairness, counts, closed, ..scheduler }
    }
}

/// The jobs of a scheduler without an engine. All of them wait; those that ran keep the tokens that
/// they have chosen, and run them again.
pub struct SuspendedJobs {
    pub(super) waiting: Vec<ScheduledJob>,
    pub(super) canceller: Canceller,
    pub(super) next_id: u64,
    pub(super) fairness: Fairness,
    pub(super) counts: SchedulerStats,
    pub(super) closed: bool,
}

impl SuspendedJobs {
    /// Their ids.
    pub fn ids(&self) -> impl Iterator<Item = JobId> {
        self.waiting.iter().map(|task| task.id)
    }
}
