//! Jobs whose context is full: they end, or discard tokens and go on.

use super::Scheduler;
use super::ending::JobEnding;
use super::job::JobId;
use crate::cache::HashChain;
use crate::error::EngineError;
use crate::request::StopReason;

impl Scheduler {
    /// Discards tokens of a running job whose context is full, if it may. Otherwise returns how it ends.
    pub(super) fn shift_or_end(&mut self, id: JobId) -> Option<JobEnding> {
        let full = Some(JobEnding::Stopped(StopReason::Context));
        let Some(at) = self.running.iter().position(|task| task.id == id) else { return full };
        let task = &mut self.running[at];
        let (Some(shift), Some(generation)) = (task.shift, &mut task.generation) else { return full };
        let discarded = shift.discarded(task.sequence.len());
        // a prompt stays whole
        if task.prompt_done.is_none() || discarded.is_empty() {
            return full;
        }
        generation.discard(discarded.clone());
        task.usage.discarded += discarded.len();
        // the rows that stay have seen the others, so that they stand for no text
        task.shifted = true;
        task.chain = HashChain::new(self.cache_id, task.salt);
        loop {
            match self.engine.shift(&mut self.running[at].sequence, discarded.clone()) {
                Ok(()) => return None,
                Err(EngineError::CacheFull(_)) if self.prefixes.evict(true) || self.release_waiting() => {}
                Err(EngineError::CacheFull(_)) => {
                    // blocks that it shares with running jobs cannot be copied: its tokens run again later
                    self.preempt(id);
                    return None;
                }
                Err(error) => return Some(JobEnding::Failed(error.into())),
            }
        }
    }
}
