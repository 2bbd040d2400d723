//! A stand-in for the engine's thread. It accepts the jobs that a scheduler would accept, and ends
//! each immediately with an empty answer.

use super::{ModelState, WorkerHandle};
use crate::model::ServedModel;
use latent_engine::scheduler::{Canceller, JobEvent, JobUsage};
use latent_engine::worker::{JobSubmission, WorkerCommand};
use latent_engine::{Request, StopReason};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A job that a request has submitted to the stand-in.
#[derive(Clone, Debug)]
pub struct TakenJob {
    /// The prompt and the parameters of the answers.
    pub request: Request,
    /// The number of answers.
    pub choices: usize,
    /// Whether the job asks for the prompt's embedding instead of answers.
    pub embed: bool,
}

/// Starts the thread, which ends when the server drains. A job is sent to the receiver before its
/// events are sent to the request.
pub(crate) fn stand_in(
    served: Arc<ServedModel>,
) -> std::io::Result<(Arc<WorkerHandle>, JoinHandle<()>, Receiver<TakenJob>)> {
    let (worker_handle, queue) = WorkerHandle::new();
    worker_handle.set_state(ModelState::Ready(Arc::clone(&served)));
    let (taken, jobs) = channel();
    let run = move || {
        while let Some(command) = queue.recv() {
            match command {
                WorkerCommand::Submit(submission) => answer(&served, *submission, &taken),
                WorkerCommand::Close => return,
                // Without a scheduler the work is dropped. Its caller sees a closed channel and
                // reports that the model is not loaded.
                _ => {}
            }
        }
    };
    let thread = std::thread::Builder::new().name("engine".into()).spawn(run)?;
    Ok((Arc::new(worker_handle), thread, jobs))
}

fn answer(served: &ServedModel, submission: JobSubmission, taken: &Sender<TakenJob>) {
    let JobSubmission { job, choices, receiver } = submission;
    if let Err(refusal) = job.check(served.context, served.vocab) {
        return receiver.refused(refusal);
    }
    let usage = JobUsage { prompt: job.request.prompt.len(), ..JobUsage::default() };
    // The receiver may have been dropped.
    let _ = taken.send(TakenJob { request: job.request, choices: 1 + choices.len(), embed: job.embed });
    receiver.accepted(Canceller::default(), Vec::new());
    for choice in 0..=choices.len() {
        let end = match job.embed {
            true => JobEvent::Embedded { values: vec![0.0; served.hidden], length: 1.0, usage },
            false => JobEvent::Finished { reason: StopReason::End, rest: String::new(), usage },
        };
        receiver.event(choice, end);
    }
}
