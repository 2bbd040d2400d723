//! Admission: starts waiting jobs, with cached prefixes of their prompts.

use super::ending::JobEnding;
use super::event::JobError;
use super::guarded_listener::GuardedListener;
use super::task::ScheduledJob;
use super::{DISK_BYTES, Scheduler};
use crate::caught::caught;
use crate::generation::Generation;
use latent_backend::KV_BLOCK;
use std::cmp::Reverse;
use std::sync::Arc;

impl Scheduler {
    /// Lets jobs run as long as there is room for them.
    pub(super) fn admit(&mut self, listener: &mut GuardedListener<'_>) {
        while let Some(at) = self.next_waiting() {
            if self.running.len() >= self.options.max_running.max(1)
                && !self.displace(self.waiting[at].priority)
            {
                return;
            }
            // a job that was displaced waits now: the first may be another
            let Some(at) = self.next_waiting() else { return };
            let mut task = self.waiting.remove(at);
            let shared = !task.sequence.is_empty();
            if !shared {
                self.adopt(&mut task);
            }
            while !self.fits(&task) && self.displace(task.priority) {}
            if !self.fits(&task) && !self.running.is_empty() {
                if !shared {
                    task.sequence = Default::default();
                }
                self.waiting.insert(at.min(self.waiting.len()), task);
                return;
            }
            match self.start(&mut task) {
                Ok(()) => self.running.push(task),
                Err(error) => self.end(task, JobEnding::Failed(error), listener),
            }
        }
    }

    /// The job that runs next: by priority; of equal ones those that ran before; then by what their keys were served, and by age.
    fn next_waiting(&self) -> Option<usize> {
        let order = |task: &ScheduledJob| {
            let served = self.fairness.served(task.key);
            (Reverse(task.priority), task.started.is_none(), served, task.id)
        };
        let waiting = self.waiting.iter().enumerate().filter(|(_, task)| task.leader.is_none());
        waiting.min_by_key(|(_, task)| order(task)).map(|(at, _)| at)
    }

    /// Takes the blocks of a running job of lower priority than this; whether there was one.
    fn displace(&mut self, priority: i32) -> bool {
        let last = self.running.iter().max_by_key(|task| task.rank());
        let Some(id) = last.filter(|task| task.priority < priority).map(|task| task.id) else { return false };
        self.preempt(id);
        true
    }

    /// Whether the blocks for a job's tokens so far and one more are free, in addition to those
    /// that running jobs have yet to take.
    fn fits(&self, task: &ScheduledJob) -> bool {
        let cache = self.engine.kv_cache();
        let wanted = |task: &ScheduledJob| {
            let blocks = (task.context().len() + 1).div_ceil(KV_BLOCK);
            blocks.min(cache.blocks()).saturating_sub(task.sequence.block_table().len())
        };
        // the last of the blocks that it shares is copied
        let copy = usize::from(!task.sequence.len().is_multiple_of(KV_BLOCK));
        let taken: usize = self.running.iter().map(wanted).sum();
        // the blocks that running jobs take next, so that they do not preempt each other at once
        let reserve = self.running.len();
        wanted(task) + copy + taken + reserve <= cache.free_blocks() + cache.idle_blocks()
    }

    /// Gives a job the longest prefix that is cached, where it is longer than what it has.
    fn adopt(&mut self, task: &mut ScheduledJob) {
        // a job that goes on after it was set back has run its prompt once
        let whole = task.uncached && task.prompt_done.is_none();
        if task.embed || whole || task.ran > 0 {
            return;
        }
        task.name_blocks();
        let drafts = self.engine.drafts() && task.wants_drafts();
        if self.prefixes.cached(&task.chain, task.context(), drafts) <= task.sequence.len() {
            return;
        }
        if let Some((sequence, from_disk)) = self.prefixes.adopt(&task.chain, task.context(), drafts) {
            (task.sequence, task.from_disk) = (sequence, from_disk);
        }
        if let Some(generation) = &mut task.generation {
            generation.resume_after(task.sequence.len());
        }
    }

    /// Makes a job ready to run.
    fn start(&mut self, task: &mut ScheduledJob) -> Result<(), JobError> {
        if let Some((request, processors)) = task.asked.take() {
            let vocab = self.engine.config().vocab_size;
            let generation = caught(|| Generation::new(Arc::clone(&self.tokenizer), vocab, &request));
            let mut generation = generation.flatten().map_err(|error| JobError::Job(error.to_string()))?;
            processors.into_iter().for_each(|processor| generation.add_processor(processor));
            if request.shift.is_none() {
                generation.limit_to_context(self.engine.context());
            }
            task.generation = Some(generation);
        }
        if let Some(generation) = &mut task.generation {
            generation.resume_after(task.sequence.len());
        }
        self.prepare(task);
        Ok(())
    }

    /// Sets up drafts and snapshots of a job's sequence.
    fn prepare(&mut self, task: &mut ScheduledJob) {
        let drafts = self.engine.drafts() && task.wants_drafts();
        self.engine.keep_drafts(&mut task.sequence, drafts);
        let last = task.prompt_len - 1;
        if !task.embed && task.sequence.len() < last {
            // a place to go back to, for another answer; the sequence is of this engine
            drop(self.engine.snapshot_at(&mut task.sequence, last));
        }
    }

    /// Looks again what is cached of a prompt that is about to run, also on disk. False where more of it is being read.
    pub(super) fn extend_prefix(&mut self, at: usize, decoding: bool) -> bool {
        let task = &self.running[at];
        if task.embed || task.uncached || task.ran > 0 || !self.options.prefix_cache {
            return true;
        }
        let budget = if decoding { DISK_BYTES } else { 8 * DISK_BYTES };
        let loaded = self.prefixes.load(&mut self.engine.cache, &task.chain, task.context(), budget);
        let mut task = self.running.swap_remove(at);
        self.adopt(&mut task);
        self.prepare(&mut task);
        self.running.push(task);
        let last = self.running.len() - 1;
        self.running.swap(at, last);
        !loaded.more
    }
}
