//! Full contexts: a job ends, or discards tokens and continues.

use super::Scheduler;
use super::ending::JobEnding;
use super::job::JobId;
use crate::cache::HashChain;
use crate::error::EngineError;
use crate::request::StopReason;

impl Scheduler {
    /// Discards tokens of a running job whose context is full, if its request allows that.
    /// Otherwise returns how the job ends.
    pub(super) fn shift_or_end(&mut self, id: JobId) -> Option<JobEnding> {
        let full = Some(JobEnding::Stopped(StopReason::Context));
        let Some(at) = self.running.iter().position(|task| task.id == id) else { return full };
        let task = &mut self.running[at];
        let (Some(shift), Some(generation)) = (task.shift, &mut task.generation) else { return full };
        let discarded = shift.discarded(task.sequence.len());
        // A prompt that is still running is never shortened.
        if task.prompt_done.is_none() || discarded.is_empty() {
            return full;
        }
        // Before the rows move, since a job that is preempted below must not run these tokens
        // again.
        generation.discard(discarded.clone());
        task.usage.discarded += discarded.len();
        // The remaining rows have attended to the discarded tokens, so no list of tokens describes
        // them, and their blocks must not be found by name.
        task.shifted = true;
        task.chain = HashChain::new(self.cache_id, task.salt);
        loop {
            match self.engine.shift(&mut self.running[at].sequence, discarded.clone()) {
                Ok(()) => return None,
                Err(EngineError::CacheFull(_)) if self.prefixes.evict(true) || self.release_waiting() => {}
                Err(EngineError::CacheFull(_)) => {
                    // Blocks that the job shares with running jobs must be copied before rows move,
                    // and no block is free. The job runs its remaining tokens again later.
                    self.preempt(id);
                    return None;
                }
                Err(error) => return Some(JobEnding::Failed(error.into())),
            }
        }
    }
}
