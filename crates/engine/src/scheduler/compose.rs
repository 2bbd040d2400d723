//! Composes a step: selects jobs and the number of tokens of each.

use super::Scheduler;
use super::job::JobId;
use latent_backend::{KV_BLOCK, STATE_CHUNK};

/// Every fourth step orders prompts by age alone.
const BY_AGE: u64 = 4;

/// What a step runs: jobs, and how many tokens of each.
#[derive(Clone, Debug, Default)]
pub(super) struct StepPlan {
    pub shares: Vec<(JobId, usize)>,
}

impl StepPlan {
    /// Takes a job out.
    pub(super) fn drop_job(&mut self, id: JobId) {
        self.shares.retain(|(job, _)| *job != id);
    }

    /// The tokens of a job.
    pub(super) fn share(&self, id: JobId) -> usize {
        self.shares.iter().find(|(job, _)| *job == id).map_or(0, |(_, share)| *share)
    }
}

impl Scheduler {
    /// Jobs that decode run a token each; prompts share what is left of the step, as many tokens as the others can bear.
    pub(super) fn compose(&mut self) -> StepPlan {
        let most = self.engine.max_batch_tokens();
        let mut decoding: Vec<_> = self.running.iter().filter(|task| task.decodes()).collect();
        // if not all fit into the step, the job that has waited longest runs first
        decoding.sort_by_key(|task| (task.last_token, task.id));
        // as many steps in flight as there can be have equal parts of them
        let in_flight = self.engine.steps_in_flight();
        let all =
            if in_flight > 1 { self.running.iter().filter(|task| !task.in_prompt()).count() } else { 0 };
        let part = if in_flight > 1 { all.div_ceil(in_flight).min(most) } else { most };
        let mut plan = StepPlan { shares: decoding.iter().take(part).map(|task| (task.id, 1)).collect() };
        // a step of prompts alone must not keep those waiting that decode in others
        let decoding = if all > 0 { part } else { plan.shares.len() };
        let rows = if self.engine.drafts() { 2 * decoding } else { decoding };
        let left = most.saturating_sub(rows);
        let mut budget = if decoding == 0 {
            let pending: usize = self.running.iter().map(super::ScheduledJob::pending).sum();
            self.engine.chunk_for(pending)
        } else {
            let (slowdown, least) = (self.options.prompt_slowdown.max(1.0), self.options.min_chunk.max(1));
            self.pace.budget(decoding, slowdown, least, left)
        };
        // blocks that a job of this step computes: others with the same prefix wait for them
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
            let next = task.chain.names().get(task.sequence.len() / KV_BLOCK).filter(|_| !task.embed);
            if let Some(next) = next
                && self.options.prefix_cache
                && !computed.insert(*next)
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

    /// How many of `pending` tokens after `len` rows run, about `budget`. In a model with recurrent layers, a part of a prompt ends where chunks of
    /// rows end, so that a text does not depend on how busy the scheduler is.
    fn prompt_share(&self, len: usize, pending: usize, budget: usize) -> usize {
        if pending <= budget || !self.engine.kv_cache().layout().is_recurrent() {
            return pending.min(budget);
        }
        let end = len + budget;
        match end - end % STATE_CHUNK {
            chunks if chunks > len => chunks - len,
            _ => budget,
        }
    }

    /// The jobs that have more to run than one chosen token, in the order in which they get their share.
    fn prompts_in_turn(&self) -> Vec<JobId> {
        let by_age = self.counts.steps % BY_AGE == BY_AGE - 1;
        // those whose tokens are all in flight have nothing to run
        let prompts = self.running.iter().filter(|task| !task.decodes() && task.pending() > 0);
        let mut turns: Vec<_> =
            prompts.map(|task| task.turn(self.fairness.served(task.key), by_age)).collect();
        turns.sort_unstable();
        turns.into_iter().map(|(.., id)| id).collect()
    }
}
