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
    /// Starts waiting jobs while they fit.
    pub(super) fn admit(&mut self, listener: &mut GuardedListener<'_>) {
        while let Some(at) = self.next_waiting() {
            if self.running.len() >= self.options.max_running.max(1)
                && !self.displace(self.waiting[at].priority)
            {
                return;
            }
            // A displaced job has joined the queue, so the indices have changed.
            let Some(at) = self.next_waiting() else { return };
            let mut task = self.waiting.remove(at);
            // A further choice already shares the rows of its leader's prompt.
            let shared = !task.sequence.is_empty();
            if !shared {
                self.adopt(&mut task);
            }
            while !self.fits(&task) && self.displace(task.priority) {}
            // A job that does not fit although no other runs starts nevertheless: waiting would not
            // free any block. `make_room` then ends or shifts it once the cache is full.
            if !self.fits(&task) && !self.running.is_empty() {
                // Adopted blocks would not be idle, and could not be evicted while the job waits.
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

    /// The waiting job that starts next: by priority, then preempted jobs, then by what its key was
    /// served, then by age. Jobs that wait for a leader's prompt cannot start.
    fn next_waiting(&self) -> Option<usize> {
        let order = |task: &ScheduledJob| {
            let served = self.fairness.served(task.key);
            (Reverse(task.priority), task.started.is_none(), served, task.id)
        };
        let waiting = self.waiting.iter().enumerate().filter(|(_, task)| task.leader.is_none());
        waiting.min_by_key(|(_, task)| order(task)).map(|(at, _)| at)
    }

    /// Preempts the running job of the lowest rank if its priority is lower than `priority`.
    /// Returns whether one was preempted.
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
        // A shared last block that is partly filled is copied on the first write.
        let copy = usize::from(!task.sequence.len().is_multiple_of(KV_BLOCK));
        let taken: usize = self.running.iter().map(wanted).sum();
        // One more block per running job, for its next tokens. Without the reserve, jobs would
        // preempt each other as soon as they cross a block's end.
        let reserve = self.running.len();
        wanted(task) + copy + taken + reserve <= cache.free_blocks() + cache.idle_blocks()
    }

    /// Gives a job the longest cached prefix, if it is longer than the rows that the job has.
    fn adopt(&mut self, task: &mut ScheduledJob) {
        // `uncached` asks for one whole run of the prompt. After a preemption, a job whose prompt
        // has run may use cached rows.
        let whole = task.uncached && task.prompt_done.is_none();
        // Pooling needs the hidden states of every row, and those are not cached.
        if task.embed || whole || task.ran > 0 {
            return;
        }
        task.name_blocks();
        let drafts = self.engine.drafts() && task.wants_drafts();
        // `cached` changes nothing; `adopt` would mark the blocks as recently used.
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
    ///
    /// Creating the generation runs code of the request (its sampler and stop strings), so a panic
    /// there fails this job alone.
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
            // Another answer to this prompt starts from a snapshot before its last token. The error
            // is that of a sequence of another engine, which cannot occur here.
            drop(self.engine.snapshot_at(&mut task.sequence, last));
        }
    }

    /// Looks up the prefix of a prompt again before its first tokens run, now also on disk: other
    /// jobs may have cached it since admission. Returns false if the disk has more blocks to read
    /// in later steps.
    pub(super) fn extend_prefix(&mut self, at: usize, decoding: bool) -> bool {
        let task = &self.running[at];
        if task.embed || task.uncached || task.ran > 0 || !self.options.prefix_cache {
            return true;
        }
        let budget = if decoding { DISK_BYTES } else { 8 * DISK_BYTES };
        let loaded = self.prefixes.load(&mut self.engine.cache, &task.chain, task.context(), budget);
        // The job leaves the list for a moment so that `self` can be borrowed. The swap restores
        // its index, which the caller uses again.
        let mut task = self.running.swap_remove(at);
        self.adopt(&mut task);
        self.prepare(&mut task);
        self.running.push(task);
        let last = self.running.len() - 1;
        self.running.swap(at, last);
        !loaded.more
    }
}
