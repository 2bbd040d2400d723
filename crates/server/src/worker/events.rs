//! The channel from the engine to a request. It is bounded in bytes, and either end can close it.

use latent_engine::ChosenToken;
use latent_engine::scheduler::{Canceller, JobEvent, JobId, Refusal};
use latent_engine::worker::JobReceiver;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A message to a request.
#[derive(Debug)]
pub(crate) enum JobNotice {
    /// The scheduler has taken the job.
    Accepted,
    Refused(Refusal),
    /// An event of one of its answers.
    Event {
        choice: usize,
        event: JobEvent,
    },
}

#[derive(Default)]
struct NoticeChannel {
    /// Estimated bytes on the wire of notices that the reader has not fetched.
    bytes: AtomicUsize,
    /// The receiver was dropped.
    gone: AtomicBool,
    /// The reader was too slow.
    overrun: AtomicBool,
    /// The jobs to cancel, once the scheduler has accepted them.
    jobs: Mutex<Option<(Canceller, Vec<JobId>)>>,
}

impl NoticeChannel {
    fn cancel(&self) {
        // The flag is set before `jobs` is read, and `accepted` sets `jobs` before it reads the
        // flag: one of the two sees the other, so that the jobs are cancelled in either order.
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

/// The request's end. Dropping it cancels the jobs that still run.
pub(crate) struct NoticeReceiver {
    receiver: UnboundedReceiver<JobNotice>,
    shared: Arc<NoticeChannel>,
}

/// Creates both ends. A reader that leaves more than `limit` bytes unread is cut off.
pub(crate) fn events(limit: usize) -> (NoticeSender, NoticeReceiver) {
    // Unbounded, because the engine's thread must never wait for a client. `limit` bounds the
    // memory instead.
    let (sender, receiver) = unbounded_channel();
    let shared = Arc::<NoticeChannel>::default();
    (NoticeSender { sender, shared: Arc::clone(&shared), limit }, NoticeReceiver { receiver, shared })
}

/// Estimated bytes of a notice on the wire. Embeddings have no limit on unread bytes. `send` and
/// `poll` must get the same number for a notice.
fn cost(notice: &JobNotice) -> usize {
    const ENVELOPE: usize = 200;
    const ALTERNATIVE: usize = 100;
    match notice {
        JobNotice::Event { event: JobEvent::Token(ChosenToken { text, logprob, .. }), .. } => {
            let alternatives = logprob.as_ref().map_or(0, |(_, top)| 1 + top.len());
            ENVELOPE + text.len() + ALTERNATIVE * alternatives
        }
        _ => ENVELOPE,
    }
}

impl NoticeSender {
    /// Sends an event to the request, unless its receiver was dropped.
    fn send(&self, notice: JobNotice) {
        let bytes = cost(&notice);
        let waiting = self.shared.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        // The last event is sent even over the limit: it ends the job, and an embedding is a single
        // event, however large.
        let whole = matches!(&notice, JobNotice::Event { event, .. } if event.is_last());
        if waiting > self.limit && !whole {
            self.shared.overrun.store(true, Ordering::SeqCst);
            self.shared.cancel();
        } else {
            // The receiver may have been dropped.
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
        // The receiver was dropped before its jobs were known.
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
    /// The next notice. None: the engine has dropped its end.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<JobNotice>> {
        let polled = self.receiver.poll_recv(context);
        if let Poll::Ready(Some(notice)) = &polled {
            self.shared.bytes.fetch_sub(cost(notice), Ordering::SeqCst);
        }
        polled
    }

    /// Whether the jobs were cancelled because the reader was too slow.
    pub(crate) fn is_overrun(&self) -> bool {
        self.shared.overrun.load(Ordering::SeqCst)
    }
}

impl Drop for NoticeReceiver {
    fn drop(&mut self) {
        self.shared.cancel();
    }
}
