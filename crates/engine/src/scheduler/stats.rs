//! Statistics of a scheduler.

use crate::cache::{DiskStats, PrefixStats};
use crate::draft_kind::DraftCount;
use std::time::Duration;

/// What a scheduler does and has done. Sums are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Jobs that run.
    pub running: usize,
    /// Of these, jobs whose prompt has not run to its end.
    pub in_prompt: usize,
    /// Jobs that wait, those that were preempted counted.
    pub waiting: usize,
    /// Tokens of the prompts that wait.
    pub waiting_tokens: usize,
    /// Blocks of the KV cache.
    pub blocks: usize,
    /// Blocks that hold nothing.
    pub blocks_free: usize,
    /// Blocks that only the prefix cache holds, so that they are free when they are needed.
    pub blocks_cached: usize,
    /// Blocks of running jobs.
    pub blocks_used: usize,
    /// Tokens of one block.
    pub block_tokens: usize,
    /// Slots of recurrent state, in a model with such state.
    pub states: usize,
    /// Slots that hold nothing; the others hold the states of running jobs and snapshots.
    pub states_free: usize,
    /// Bytes of one slot.
    pub state_bytes: usize,
    /// Jobs that were submitted, those that were refused not counted.
    pub submitted: u64,
    /// Jobs that were refused since the queue was full.
    pub refused: u64,
    /// Jobs that ended with an answer or an embedding.
    pub finished: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that failed.
    pub failed: u64,
    /// Prompt tokens that ran, those that ran again after a preemption counted.
    pub tokens_in: u64,
    /// Tokens that were chosen.
    pub tokens_out: u64,
    /// How often a job gave its blocks to others.
    pub preemptions: u64,
    /// Steps of the engine.
    pub steps: u64,
    /// Time that steps took.
    pub step_time: Duration,
    /// The last step: sequences that decoded in it, tokens of prompts, and how long it took.
    pub last_decoding: usize,
    /// Tokens of prompts in the last step.
    pub last_prompt_tokens: usize,
    /// How long the last step took.
    pub last_step_time: Duration,
    /// Time from the submission of started jobs to their first step, summed.
    pub queue_time: Duration,
    /// Time from the submission to the first chosen token, summed over `first_tokens` jobs.
    pub first_token_time: Duration,
    /// Jobs that have a first token.
    pub first_tokens: u64,
    /// Time between two tokens of a job, summed over `gaps`.
    pub gap_time: Duration,
    /// Times between two tokens.
    pub gaps: u64,
    /// Time from the first steps of jobs to the ends of their prompts, summed.
    pub prompt_time: Duration,
    /// Tokens of the longest job that has ended, its answer included.
    pub longest: usize,
    /// Drafted and accepted tokens.
    pub drafts: DraftCount,
    /// The prefix cache in memory.
    pub prefixes: PrefixStats,
    /// The prefix cache on disk.
    pub disk: DiskStats,
}

impl SchedulerStats {
    /// The sums of this scheduler and of an earlier one; the present state is this one's.
    #[must_use]
    pub fn after(self, past: &SchedulerStats) -> SchedulerStats {
        let (prefixes, disk) = (self.prefixes, self.disk);
        SchedulerStats {
            submitted: self.submitted + past.submitted,
            refused: self.refused + past.refused,
            finished: self.finished + past.finished,
            cancelled: self.cancelled + past.cancelled,
            failed: self.failed + past.failed,
            tokens_in: self.tokens_in + past.tokens_in,
            tokens_out: self.tokens_out + past.tokens_out,
            preemptions: self.preemptions + past.preemptions,
            steps: self.steps + past.steps,
            step_time: self.step_time + past.step_time,
            queue_time: self.queue_time + past.queue_time,
            first_token_time: self.first_token_time + past.first_token_time,
            first_tokens: self.first_tokens + past.first_tokens,
            gap_time: self.gap_time + past.gap_time,
            gaps: self.gaps + past.gaps,
            prompt_time: self.prompt_time + past.prompt_time,
            longest: self.longest.max(past.longest),
            drafts: DraftCount {
                steps: self.drafts.steps + past.drafts.steps,
                drafted: self.drafts.drafted + past.drafts.drafted,
                accepted: self.drafts.accepted + past.drafts.accepted,
            },
            prefixes: PrefixStats {
                lookups: prefixes.lookups + past.prefixes.lookups,
                hits: prefixes.hits + past.prefixes.hits,
                tokens_saved: prefixes.tokens_saved + past.prefixes.tokens_saved,
                tokens_asked: prefixes.tokens_asked + past.prefixes.tokens_asked,
                evicted: prefixes.evicted + past.prefixes.evicted,
                ..prefixes
            },
            disk: DiskStats {
                blocks_read: disk.blocks_read + past.disk.blocks_read,
                tokens_saved: disk.tokens_saved + past.disk.tokens_saved,
                blocks_written: disk.blocks_written + past.disk.blocks_written,
                blocks_dropped: disk.blocks_dropped + past.disk.blocks_dropped,
                errors: disk.errors + past.disk.errors,
                removed: disk.removed + past.disk.removed,
                ..disk
            },
            ..self
        }
    }
}
