//! A listener whose panics end only the job of the event.

use super::event::{JobError, JobEvent, JobListener};
use super::job::JobId;
use crate::caught::caught;
use crate::tracing;

pub(super) struct GuardedListener<'a> {
    listener: JobListener<'a>,
    /// Jobs that must end because the listener has panicked at one of their events.
    panicked: Vec<(JobId, JobError)>,
}

impl<'a> GuardedListener<'a> {
    pub(super) fn new(listener: JobListener<'a>) -> GuardedListener<'a> {
        GuardedListener { listener, panicked: Vec::new() }
    }

    /// Emits an event. After a panic at an event of a job, the listener gets only the final event
    /// of that job.
    pub(super) fn tell(&mut self, id: JobId, event: JobEvent) {
        let last = event.is_last();
        if !last && self.panicked.iter().any(|(job, _)| *job == id) {
            return;
        }
        let Err(error) = self.call(id, event) else { return };
        if !last {
            // The scheduler may be in the middle of a step here. It ends the job once the job's
            // result is processed.
            self.panicked.push((id, error));
        } else if let Err(error) = self.call(id, JobEvent::Failed(error)) {
            tracing::error!(job = id.0, "the listener panicked at the final event of a job: {error}");
        }
    }

    fn call(&mut self, id: JobId, event: JobEvent) -> Result<(), JobError> {
        caught(|| (self.listener)(id, event)).map_err(|error| JobError::Job(error.to_string()))
    }

    /// Returns the error of a job at whose event the listener has panicked.
    pub(super) fn take_panic(&mut self, id: JobId) -> Option<JobError> {
        let at = self.panicked.iter().position(|(job, _)| *job == id)?;
        Some(self.panicked.swap_remove(at).1)
    }
}
