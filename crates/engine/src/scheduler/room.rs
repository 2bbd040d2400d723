//! Blocks for a step: free blocks, then idle blocks of the prefix cache, then those of jobs of
//! lower rank.

use super::Scheduler;
use super::compose::StepPlan;
use super::guarded_listener::GuardedListener;
use super::job::JobId;
use crate::cache::Sequence;
use crate::engine::Engine;
use crate::tracing;
use latent_backend::KV_BLOCK;

/// Slots of recurrent state that are freed per sequence for the states of its drafts, by evicting
/// snapshots of the prefix cache.
const STATES_FOR_DRAFTS: usize = 4;

impl Scheduler {
    /// Lends the engine for work that is not a job. Evicts cached prefixes until `tokens` tokens
    /// fit into the KV cache. Returns `None` while the scheduler has jobs.
    pub fn lend_engine(&mut self, tokens: usize) -> Option<&mut Engine> {
        if !self.is_idle() {
            return None;
        }
        let wanted = tokens.div_ceil(KV_BLOCK);
        while self.engine.kv_cache().free_blocks() < wanted && self.prefixes.evict(true) {}
        self.prefixes.evict_states(1);
        Some(&mut self.engine)
    }

    /// Makes room for a step. Jobs that must wait for blocks are removed from the returned plan.
    /// The job of the highest rank always runs, so that no two jobs can wait for each other.
    pub(super) fn make_room(&mut self, mut plan: StepPlan, listener: &mut GuardedListener<'_>) -> StepPlan {
        loop {
            let (wanted, copies) = self.wanted(&plan);
            let cache = self.engine.kv_cache();
            if wanted <= cache.free_blocks() {
                break;
            }
            // The cheapest source first: evicting an idle block takes no rows from any job.
            if cache.idle_blocks() > 0 && self.prefixes.evict(false) {
                continue;
            }
            // A block that a job shares with the prefix cache alone need not be copied once it is
            // evicted.
            if copies && self.prefixes.evict(true) {
                continue;
            }
            if !self.release_waiting() && !self.release_last(&mut plan) && !self.prefixes.evict(true) {
                // Nothing is left to release: one job fills the whole cache.
                for (id, _) in std::mem::take(&mut plan.shares) {
                    if let Some(end) = self.shift_or_end(id) {
                        self.end_by_id(id, end, listener);
                    }
                }
                break;
            }
        }
        self.make_optional_room(&plan);
        plan
    }

    /// The number of free blocks that a plan takes, and whether some of them are for copies.
    fn wanted(&self, plan: &StepPlan) -> (usize, bool) {
        let cache = self.engine.kv_cache();
        let tasks = self.running.iter().map(|task| (task, plan.share(task.id)));
        tasks.filter(|(_, share)| *share > 0).fold((0, false), |(wanted, copies), (task, share)| {
            let (fresh, copy) = cache.wanted_blocks(&task.sequence, share);
            (wanted + fresh + usize::from(copy), copies || copy)
        })
    }

    /// Makes room for drafts and recurrent states by evicting cached prefixes. Jobs lose no blocks
    /// for them, since a step can run without drafts.
    fn make_optional_room(&mut self, plan: &StepPlan) {
        if self.engine.drafts() {
            // Per job, the draft row may begin a block, and the MTP layer may copy a shared one.
            let wanted = self.wanted(plan).0 + 2 * plan.shares.len();
            while self.engine.kv_cache().free_blocks() < wanted
                && self.engine.kv_cache().idle_blocks() > 0
                && self.prefixes.evict(false)
            {}
        }
        // Per job, the state after the step, and one for a snapshot on the way.
        let drafts = if self.engine.lookup { STATES_FOR_DRAFTS } else { 0 };
        self.prefixes.evict_states((2 + drafts) * plan.shares.len());
    }

    /// Releases the blocks that the last waiting job shares with its leader's prompt. Returns
    /// whether a job had any.
    pub(super) fn release_waiting(&mut self) -> bool {
        let holder = self.waiting.iter_mut().rev().find(|task| !task.sequence.block_table().is_empty());
        holder.map(|task| task.sequence = Sequence::default()).is_some()
    }

    /// Preempts the running job of the lowest rank. Returns false if only the highest one has
    /// blocks.
    fn release_last(&mut self, plan: &mut StepPlan) -> bool {
        let first = self.running.iter().map(|task| task.rank()).min();
        let others = self.running.iter().filter(|task| Some(task.rank()) != first);
        let holders =
            others.filter(|task| !task.sequence.block_table().is_empty() || plan.share(task.id) > 0);
        let Some((id, holds)) = holders
            .max_by_key(|task| task.rank())
            .map(|task| (task.id, !task.sequence.block_table().is_empty()))
        else {
            return false;
        };
        plan.drop_job(id);
        // A job without blocks only leaves this step. Preempting it would free no blocks.
        if holds {
            self.preempt(id);
        }
        true
    }

    /// Releases all blocks of a running job and puts it back into the queue. It runs its tokens
    /// again later, except those whose rows are still in the prefix cache then.
    pub(super) fn preempt(&mut self, id: JobId) {
        let Some(at) = self.running.iter().position(|task| task.id == id) else { return };
        let mut task = self.running.remove(at);
        tracing::debug!(job = id.0, rows = task.sequence.len(), "preempted");
        // The prefix cache keeps the rows as long as it has room, so that they may not have to run
        // again.
        self.keep_blocks(&mut task, true);
        task.reset();
        task.usage.preemptions += 1;
        self.counts.preemptions += 1;
        self.waiting.push(task);
    }
}
