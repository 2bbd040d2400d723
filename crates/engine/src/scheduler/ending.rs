//! Ends jobs: releases their resources, then emits their final event.

use super::Scheduler;
use super::event::{JobError, JobEvent};
use super::guarded_listener::GuardedListener;
use super::job::JobId;
use super::task::ScheduledJob;
use crate::caught::caught;
use crate::request::StopReason;
use crate::tracing;
use latent_backend::KV_BLOCK;

/// Minimum number of full blocks that are written to disk. Recomputing fewer is faster than opening
/// and reading a file.
const MIN_DISK_BLOCKS: usize = 2;

/// How a job ends.
#[derive(Debug)]
pub(super) enum JobEnding {
    /// The answer or embedding is complete.
    Finished,
    /// The scheduler ends the answer early.
    Stopped(StopReason),
    Failed(JobError),
    /// The step has failed. The job's rows may be incomplete, so they are not cached.
    Engine(String),
}

impl Scheduler {
    pub(super) fn end_cancelled(&mut self, listener: &mut GuardedListener<'_>) {
        let mut ids: Vec<JobId> = self.canceller.take().into_iter().collect();
        // The set has no order. Sorted, the events do not depend on its hash seed.
        ids.sort_unstable();
        for id in ids {
            if self.end_by_id(id, JobEnding::Stopped(StopReason::Interrupted), listener) {
                self.counts.cancelled += 1;
            }
        }
    }

    /// Ends the jobs whose deadline has passed.
    pub(super) fn end_overdue(&mut self, listener: &mut GuardedListener<'_>) {
        if self.next_deadline().is_none() {
            return;
        }
        let now = (self.options.clock)();
        let overdue = |task: &&ScheduledJob| task.deadline.is_some_and(|deadline| deadline <= now);
        let tasks = self.running.iter().chain(&self.waiting).filter(overdue);
        let ids: Vec<(JobId, usize)> = tasks.map(|task| (task.id, task.completion())).collect();
        for (id, completion) in ids {
            self.end_by_id(id, JobEnding::Failed(JobError::Deadline { completion }), listener);
        }
    }

    /// Ends a job. Returns false if it has ended before.
    pub(super) fn end_by_id(
        &mut self,
        id: JobId,
        end: JobEnding,
        listener: &mut GuardedListener<'_>,
    ) -> bool {
        let place = |tasks: &[ScheduledJob]| tasks.iter().position(|task| task.id == id);
        let task = match (place(&self.running), place(&self.waiting)) {
            (Some(at), _) => self.running.remove(at),
            (None, Some(at)) => self.waiting.remove(at),
            (None, None) => return false,
        };
        self.end(task, end, listener);
        true
    }

    /// Ends a job that was removed from its list.
    pub(super) fn end(&mut self, mut task: ScheduledJob, end: JobEnding, listener: &mut GuardedListener<'_>) {
        if !matches!(end, JobEnding::Engine(_)) {
            self.keep_blocks(&mut task, true);
            self.save_blocks(&task);
        }
        // Released before the final event: a caller that reacts to the event finds the blocks free.
        task.sequence = Default::default();
        self.fairness.leave(task.key);
        self.free_followers(task.id);
        let now = (self.options.clock)();
        task.usage.prompt = task.prompt_len;
        task.usage.completion = task.completion();
        self.counts.longest = self.counts.longest.max(task.usage.prompt + task.usage.completion);
        match (task.prompt_done, task.started) {
            (Some(done), _) => task.usage.generate_time = now.saturating_duration_since(done),
            (None, Some(started)) => task.usage.prompt_time = now.saturating_duration_since(started),
            (None, None) => {}
        }
        // The end of an answer runs code of the request, whose panic must not reach other jobs.
        let finish = |task: &mut ScheduledJob, reason| {
            let finished = caught(|| finished(task, reason));
            finished.unwrap_or_else(|panicked| JobEvent::Failed(JobError::Job(panicked.to_string())))
        };
        let event = match end {
            JobEnding::Failed(error) => JobEvent::Failed(error),
            JobEnding::Engine(problem) => JobEvent::Failed(JobError::Engine(problem)),
            JobEnding::Stopped(reason) => finish(&mut task, Some(reason)),
            JobEnding::Finished => match &task.embedding {
                Some(embedding) => JobEvent::Embedded {
                    values: embedding.values(),
                    length: embedding.length(),
                    usage: task.usage,
                },
                None => finish(&mut task, None),
            },
        };
        match &event {
            JobEvent::Failed(_) => self.counts.failed += 1,
            // `end_cancelled` counts these.
            JobEvent::Finished { reason: StopReason::Interrupted, .. } => {}
            _ => self.counts.finished += 1,
        }
        self.counts.drafts.steps += task.usage.drafts.steps;
        self.counts.drafts.drafted += task.usage.drafts.drafted;
        self.counts.drafts.accepted += task.usage.drafts.accepted;
        listener.tell(task.id, event);
        let id = task.id;
        // Dropping a logits processor runs code of the request too.
        if let Err(panicked) = caught(|| drop(task)) {
            tracing::error!(job = id.0, "{panicked}");
        }
    }

    /// Caches the full blocks of a job, and its last, partial block if `with_partial`.
    pub(super) fn keep_blocks(&mut self, task: &mut ScheduledJob, with_partial: bool) {
        let full = task.sequence.len() / KV_BLOCK;
        // Rows of embedded texts are not cached, and shifted rows stand for no list of tokens.
        if !self.options.prefix_cache || task.embed || task.shifted || task.sequence.is_empty() {
            return;
        }
        if with_partial || full > task.kept {
            task.name_blocks();
            self.prefixes.insert(&task.chain, &task.sequence, with_partial);
            task.kept = full;
        }
    }

    /// Queues the full blocks of a job that ends for writing to disk.
    fn save_blocks(&mut self, task: &ScheduledJob) {
        // After a context shift the chain has no names, and no block is written.
        let full = (task.sequence.len() / KV_BLOCK).min(task.chain.names().len());
        if self.options.prefix_cache && !task.embed && full >= MIN_DISK_BLOCKS {
            self.prefixes.save(&task.chain.names()[..full]);
        }
    }

    /// Releases the jobs that wait for the prompt of an ended job. The first of them becomes the
    /// leader of the others, so that the prompt still runs only once.
    fn free_followers(&mut self, id: JobId) {
        let mut first = None;
        for task in self.waiting.iter_mut().filter(|task| task.leader == Some(id)) {
            task.leader = first;
            first.get_or_insert(task.id);
        }
    }
}

/// The final event of an answer.
fn finished(task: &mut ScheduledJob, reason: Option<StopReason>) -> JobEvent {
    let Some(generation) = &mut task.generation else {
        return JobEvent::Finished {
            reason: reason.unwrap_or(StopReason::Interrupted),
            rest: String::new(),
            usage: task.usage,
        };
    };
    task.usage.drafts = generation.drafts();
    let rest = generation.finish();
    let reason = reason.or(generation.stop_reason()).unwrap_or(StopReason::Interrupted);
    JobEvent::Finished { reason, rest, usage: task.usage }
}
