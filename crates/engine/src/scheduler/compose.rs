//! Composes a step: selects jobs and the number of tokens of each.

use super::Scheduler;
use super::job::JobId;
use latent_backend::{KV_BLOCK, STATE_CHUNK};

/// Every fourth step orders prompts by priority and age alone, so that no prompt starves while
/// other keys or shorter prompts keep arriving.
const BY_AGE: u64 = 4;

/// The jobs of a step, and the number of tokens of each.
#[derive(Clone, Debug, Default)]
pub(super) struct StepPlan {
    pub shares: Vec<(JobId, usize)>,
}

impl StepPlan {
    pub(super) fn drop_job(&mut self, id: JobId) {
        self.shares.retain(|(job, _)| *job != id);
    }

    /// The number of tokens of a job; 0 if the step does not run it.
    pub(super) fn share(&self, id: JobId) -> usize {
        self.shares.iter().find(|(job, _)| *job == id).map_or(0, |(_, share)| *share)
    }
}

impl Scheduler {
    /// Each decoding job runs one token. Prompts share the rest of the step, within the budget that
    /// `pace.rs` computes.
    pub(super) fn compose(&mut self) -> StepPlan {
        let most = self.engine.max_batch_tokens();
        let mut decoding: Vec<_> = self.running.iter().filter(|task| task.decodes()).collect();
        // If not all fit into the step, the jobs whose last token is oldest run first.
        decoding.sort_by_key(|task| (task.last_token, task.id));
        // Decoding jobs are divided evenly between the steps in flight. If the first step took all
        // of them, later ranks of the pipeline would idle until it ends.
        let in_flight = self.engine.steps_in_flight();
        let all =
            if in_flight > 1 { self.running.iter().filter(|task| !task.in_prompt()).count() } else { 0 };
        let part = if in_flight > 1 { all.div_ceil(in_flight).min(most) } else { most };
        let mut plan = StepPlan { shares: decoding.iter().take(part).map(|task| (task.id, 1)).collect() };
        // With steps in flight, this step may have prompts only while jobs decode in other steps. A
        // long prompt step would delay them in the pipeline, so the budget counts them.
        let decoding = if all > 0 { part } else { plan.shares.len() };
        // The MTP layer may add one draft row per decoding job.
        let rows = if self.engine.drafts() { 2 * decoding } else { decoding };
        let left = most.saturating_sub(rows);
        let mut budget = if decoding == 0 {
            let pending: usize = self.running.iter().map(super::ScheduledJob::pending).sum();
            self.engine.chunk_for(pending)
        } else {
            let (slowdown, least) = (self.options.prompt_slowdown.max(1.0), self.options.min_chunk.max(1));
            self.pace.budget(decoding, slowdown, least, left)
        };
        // Of prompts with the same next block, one runs. The others wait until the block is cached.
        let mut computed = self.computed_in_flight();
        for id in self.prompts_in_turn() {
            let Some(at) = self.running.iter().position(|task| task.id == id) else { continue };
            if budget == 0 {
                break;
            }
            if !self.extend_prefix(at, decoding > 0) {
                continue;
            }
            let task = &self.running[at];
            // An embedding runs all of its rows itself, so that it has nothing to wait for.
            let next = task.chain.names().get(task.sequence.len() / KV_BLOCK).filter(|_| !task.embed);
            if let Some(next) = next
                && self.options.prefix_cache
                && !computed.insert(*next)
                // A prompt that has begun continues: its own rows are not shared with the other's.
                && task.ran == 0
            {
                continue;
            }
            let share = self.prompt_share(task.sequence.len(), task.pending(), budget);
            budget = budget.saturating_sub(share);
            plan.shares.push((id, share));
        }
        plan
    }

    /// How many of `pending` tokens after `len` rows run, at most about `budget`.
    fn prompt_share(&self, len: usize, pending: usize, budget: usize) -> usize {
        if pending <= budget || !self.engine.kv_cache().layout().is_recurrent() {
            return pending.min(budget);
        }
        // Kernels run recurrent layers in chunks of STATE_CHUNK rows, and results depend on where
        // chunks begin. Parts of prompts therefore end at multiples of it, so that a text does not
        // depend on the load of the scheduler. A budget below one chunk is used as it is: otherwise
        // the prompt would never progress.
        let end = len + budget;
        match end - end % STATE_CHUNK {
            chunks if chunks > len => chunks - len,
            _ => budget,
        }
    }

    /// The jobs that run prompt tokens, in the order in which they get their share.
    fn prompts_in_turn(&self) -> Vec<JobId> {
        let by_age = self.counts.steps % BY_AGE == BY_AGE - 1;
        // Jobs whose tokens are all in flight have no tokens to run.
        let prompts = self.running.iter().filter(|task| !task.decodes() && task.pending() > 0);
        let mut turns: Vec<_> =
            prompts.map(|task| task.turn(self.fairness.served(task.key), by_age)).collect();
        turns.sort_unstable();
        turns.into_iter().map(|(.., id)| id).collect()
    }
}
