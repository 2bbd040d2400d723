//! Statistics of a scheduler.

use crate::cache::{DiskStats, PrefixStats};
use crate::draft_kind::DraftCount;
use std::time::Duration;

/// Current state and totals of a scheduler. Totals are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct SchedulerStats {
    /// Running jobs.
    pub running: usize,
    /// Running jobs whose prompt has not run to its end.
    pub in_prompt: usize,
    /// Waiting jobs, including preempted ones.
    pub waiting: usize,
    /// Prompt tokens of waiting jobs.
    pub waiting_tokens: usize,
    /// Blocks of the KV cache.
    pub blocks: usize,
    /// Free blocks.
    pub blocks_free: usize,
    /// Idle blocks: only the prefix cache uses them, and evicts them when jobs need blocks.
    pub blocks_cached: usize,
    /// Blocks of jobs.
    pub blocks_used: usize,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Slots of recurrent state; 0 for a model without such state.
    pub states: usize,
    /// Free slots. The others hold states of jobs, and snapshots.
    pub states_free: usize,
    /// Bytes per slot.
    pub state_bytes: usize,
    /// Submitted jobs, without refused ones.
    pub submitted: u64,
    /// Jobs that were refused because the queue was full.
    pub refused: u64,
    /// Jobs that ended with an answer or an embedding.
    pub finished: u64,
    /// Cancelled jobs.
    pub cancelled: u64,
    /// Failed jobs.
    pub failed: u64,
    /// Prompt tokens that ran, including those that ran again after a preemption.
    pub tokens_in: u64,
    /// Chosen tokens.
    pub tokens_out: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Steps of the engine.
    pub steps: u64,
    /// Total time of all steps.
    pub step_time: Duration,
    /// Sequences that decoded in the last step.
    pub last_decoding: usize,
    /// Prompt tokens of the last step.
    pub last_prompt_tokens: usize,
    /// Time of the last step.
    pub last_step_time: Duration,
    /// Time from submission to the first step, summed over all started jobs.
    pub queue_time: Duration,
    /// Time from submission to the first chosen token, summed over `first_tokens` jobs.
    pub first_token_time: Duration,
    /// Jobs that have a first token.
    pub first_tokens: u64,
    /// Time between two tokens of a job, summed over `gaps`.
    pub gap_time: Duration,
    /// Number of gaps between two tokens of a job.
    pub gaps: u64,
    /// Time from the first step of a job to the end of its prompt, summed.
    pub prompt_time: Duration,
    /// Prompt and answer tokens of the longest job that has ended.
    pub longest: usize,
    /// Drafted and accepted tokens.
    pub drafts: DraftCount,
    /// The prefix cache in memory.
    pub prefixes: PrefixStats,
    /// The prefix cache on disk.
    pub disk: DiskStats,
}

impl SchedulerStats {
    /// The totals of this scheduler and of an earlier one, with the current state of this one.
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
