//! The way from the engine to a request: bounded, and closed from either end.

use latent_engine::Chosen;
use latent_engine::scheduler::{Canceller, JobEvent, JobId, Refusal};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What a request hears.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The scheduler has taken the job.
    Accepted,
    /// It has not.
    Refused(Refusal),
    /// Something became of an answer.
    Event { choice: usize, event: JobEvent },
}

#[derive(Default)]
struct Shared {
    /// Bytes that the reader has not fetched, about.
    bytes: AtomicUsize,
    /// The receiver was dropped.
    gone: AtomicBool,
    /// The reader was too slow.
    overrun: AtomicBool,
    jobs: Mutex<Option<(Canceller, Vec<JobId>)>>,
}

impl Shared {
    fn cancel(&self) {
        self.gone.store(true, Ordering::SeqCst);
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((canceller, ids)) = &*jobs {
            ids.iter().for_each(|id| canceller.cancel(*id));
        }
    }
}

/// The engine's end.
#[derive(Clone)]
pub(crate) struct Events {
    sender: UnboundedSender<Notice>,
    shared: Arc<Shared>,
    limit: usize,
}

/// The request's end. Dropped, it cancels what still runs.
pub(crate) struct Listening {
    receiver: UnboundedReceiver<Notice>,
    shared: Arc<Shared>,
}

/// Both ends. A reader that leaves more than `limit` bytes waiting is cut off.
pub(crate) fn events(limit: usize) -> (Events, Listening) {
    let (sender, receiver) = unbounded_channel();
    let shared = Arc::<Shared>::default();
    (Events { sender, shared: Arc::clone(&shared), limit }, Listening { receiver, shared })
}

/// About what a notice takes on the wire.
fn cost(notice: &Notice) -> usize {
    const ENVELOPE: usize = 200;
    const ALTERNATIVE: usize = 100;
    match notice {
        Notice::Event { event: JobEvent::Token(Chosen { text, logprob, .. }), .. } => {
            let alternatives = logprob.as_ref().map_or(0, |(_, top)| 1 + top.len());
            ENVELOPE + text.len() + ALTERNATIVE * alternatives
        }
        Notice::Event { event: JobEvent::Embedded { values, .. }, .. } => ENVELOPE + 12 * values.len(),
        _ => ENVELOPE,
    }
}

impl Events {
    /// Sends an event to the request. False if the receiver was dropped.
    pub(super) fn send(&self, notice: Notice) -> bool {
        let bytes = cost(&notice);
        let waiting = self.shared.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        // an embedding comes all at once, and ends its job
        let whole = matches!(&notice, Notice::Event { event, .. } if event.is_last());
        if waiting > self.limit && !whole {
            self.shared.overrun.store(true, Ordering::SeqCst);
            self.shared.cancel();
            return false;
        }
        self.sender.send(notice).is_ok()
    }

    /// Whether the request has gone away before its job began.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::SeqCst)
    }

    /// Which jobs end when the request goes away.
    pub(super) fn bind(&self, canceller: Canceller, ids: Vec<JobId>) {
        *self.shared.jobs.lock().unwrap_or_else(PoisonError::into_inner) = Some((canceller, ids));
        if self.is_gone() {
            self.shared.cancel();
        }
    }
}

impl Listening {
    /// The next notice; none once the engine has let go.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Notice>> {
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

impl Drop for Listening {
    fn drop(&mut self) {
        self.shared.cancel();
    }
}
