//! A stand-in for the engine's thread: it takes the jobs that a scheduler would take, and ends each at once with an empty answer.

use super::{Command, JobNotice, JobSubmission, ModelState, WorkerHandle};
use crate::model::ServedModel;
use latent_engine::scheduler::{JobEvent, JobUsage, Refusal};
use latent_engine::{Request, StopReason};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A job that was taken.
#[derive(Clone, Debug)]
pub struct TakenJob {
    /// The prompt, and how it is answered.
    pub request: Request,
    /// Answers to it.
    pub choices: usize,
    /// The prompt's embedding is wanted, in place of answers.
    pub embed: bool,
}

/// Starts the thread, which ends when the server drains. The receiver hears of every job before the request does.
pub(crate) fn stand_in(
    served: Arc<ServedModel>,
) -> std::io::Result<(Arc<WorkerHandle>, JoinHandle<()>, Receiver<TakenJob>)> {
    let (sender, commands) = channel();
    let worker_handle = Arc::new(WorkerHandle::new(sender));
    worker_handle.set_state(ModelState::Ready(Arc::clone(&served)));
    let (taken, jobs) = channel();
    let own = Arc::clone(&worker_handle);
    let run = move || {
        while let Ok(command) = commands.recv() {
            match command {
                Command::Submit(submission) => {
                    own.queued.fetch_sub(1, Ordering::SeqCst);
                    answer(&served, *submission, &taken);
                }
                // it has no scheduler: who waits for the work hears that it is gone
                Command::Work(_) => {}
                Command::Stop => return,
            }
        }
    };
    let thread = std::thread::Builder::new().name("engine".into()).spawn(run)?;
    Ok((worker_handle, thread, jobs))
}

/// Why a scheduler would not take a request, as far as it does not depend on the engine's state.
fn refusal(served: &ServedModel, request: &Request, embed: bool) -> Option<Refusal> {
    let tokens = request.prompt.len();
    if tokens == 0 {
        return Some(Refusal::Invalid("the prompt has no tokens".into()));
    }
    if tokens + usize::from(!embed) > served.context {
        return Some(Refusal::TooLong { tokens, context: served.context });
    }
    request.sampling.validate(served.vocab).err().map(|error| Refusal::Invalid(error.to_string()))
}

fn answer(served: &ServedModel, submission: JobSubmission, taken: &Sender<TakenJob>) {
    let JobSubmission { job, choices, events } = submission;
    if let Some(refusal) = refusal(served, &job.request, job.embed) {
        events.send(JobNotice::Refused(refusal));
        return;
    }
    let usage = JobUsage { prompt: job.request.prompt.len(), ..JobUsage::default() };
    // status requests are still answered after the last job
    let _ = taken.send(TakenJob { request: job.request, choices: 1 + choices.len(), embed: job.embed });
    events.send(JobNotice::Accepted);
    for choice in 0..=choices.len() {
        let end = match job.embed {
            true => JobEvent::Embedded { values: vec![0.0; served.hidden], length: 1.0, usage },
            false => JobEvent::Finished { reason: StopReason::End, rest: String::new(), usage },
        };
        events.send(JobNotice::Event { choice, event: end });
    }
}
