//! The way from the engine to a request: bounded, and closed from either end.

use latent_engine::ChosenToken;
use latent_engine::scheduler::{Canceller, JobEvent, JobId, Refusal};
use latent_engine::worker::JobReceiver;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What a request hears.
#[derive(Debug)]
pub(crate) enum JobNotice {
    /// The scheduler has taken the job.
    Accepted,
    /// It has not.
    Refused(Refusal),
    /// Something became of an answer.
    Event { choice: usize, event: JobEvent },
}

#[derive(Default)]
struct NoticeChannel {
    /// Bytes that the reader has not fetched, about.
    bytes: AtomicUsize,
    /// The receiver was dropped.
    gone: AtomicBool,
    /// The reader was too slow.
    overrun: AtomicBool,
    jobs: Mutex<Option<(Canceller, Vec<JobId>)>>,
}

impl NoticeChannel {
    fn cancel(&self) {
        self.gone.store(true, Ordering::SeqCst);
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((canceller, ids)) = &*jobs {
            ids.iter().for_each(|id| canceller.cancel(*id));
        }
    }
}

/// The engine's end.
pub(crate) struct NoticeSender {
    sender: UnboundedSender<JobNotice>,
    shared: Arc<NoticeChannel>,
    limit: usize,
}

/// The request's end. Dropped, it cancels what still runs.
pub(crate) struct NoticeReceiver {
    receiver: UnboundedReceiver<JobNotice>,
    shared: Arc<NoticeChannel>,
}

/// Both ends. A reader that leaves more than `limit` bytes waiting is cut off.
pub(crate) fn events(limit: usize) -> (NoticeSender, NoticeReceiver) {
    let (sender, receiver) = unbounded_channel();
    let shared = Arc::<NoticeChannel>::default();
    (NoticeSender { sender, shared: Arc::clone(&shared), limit }, NoticeReceiver { receiver, shared })
}

/// About what a notice takes on the wire.
fn cost(notice: &JobNotice) -> usize {
    const ENVELOPE: usize = 200;
    const ALTERNATIVE: usize = 100;
    match notice {
        JobNotice::Event { event: JobEvent::Token(ChosenToken { text, logprob, .. }), .. } => {
            let alternatives = logprob.as_ref().map_or(0, |(_, top)| 1 + top.len());
            ENVELOPE + text.len() + ALTERNATIVE * alternatives
        }
        JobNotice::Event { event: JobEvent::Embedded { values, .. }, .. } => ENVELOPE + 12 * values.len(),
        _ => ENVELOPE,
    }
}

impl NoticeSender {
    /// Sends an event to the request, unless its receiver was dropped.
    fn send(&self, notice: JobNotice) {
        let bytes = cost(&notice);
        let waiting = self.shared.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        // an embedding comes all at once, and ends its job
        let whole = matches!(&notice, JobNotice::Event { event, .. } if event.is_last());
        if waiting > self.limit && !whole {
            self.shared.overrun.store(true, Ordering::SeqCst);
            self.shared.cancel();
        } else {
            // the receiver may have been dropped
            let _ = self.sender.send(notice);
        }
    }
}

impl JobReceiver for NoticeSender {
    fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::SeqCst)
    }

    fn accepted(&self, canceller: Canceller, jobs: Vec<JobId>) {
        *self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner) = Some((canceller, jobs));
        if self.is_gone() {
            self.shared.cancel();
        }
        self.send(JobNotice::Accepted);
    }

    fn refused(&self, refusal: Refusal) {
        self.send(JobNotice::Refused(refusal));
    }

    fn event(&self, choice: usize, event: JobEvent) {
        self.send(JobNotice::Event { choice, event });
    }
}

impl NoticeReceiver {
    /// The next notice; none once the engine has let go.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<JobNotice>> {
        let polled = self.receiver.poll_recv(context);
        if let Poll::Ready(Some(notice)) = &polled {
            self.shared.bytes.fetch_sub(cost(notice), Ordering::SeqCst);
        }
        polled
    }

    /// Whether the engine has given up on a slow reader.
    pub(crate) fn is_overrun(&self) -> bool {
        self.shared.overrun.load(Ordering::SeqCst)
    }
}

impl Drop for NoticeReceiver {
    fn drop(&mut self) {
        self.shared.cancel();
    }
}
