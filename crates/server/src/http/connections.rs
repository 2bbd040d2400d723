//! The connections that are open: how many, what each waits for, and closing those that keep others out.

use crate::memory::RequestCharge;
use crate::spans::RequestSpan;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<u64, ConnectionEntry>>,
    busy: AtomicUsize,
}

/// What a connection waits for. Where others need room, the lower stages are closed first, and the last one never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionStage {
    /// A request.
    Idle,
    /// The rest of a request's body.
    Body,
    Answer,
}

struct ConnectionEntry {
    stage: ConnectionStage,
    /// Since when it is in its stage.
    since: Instant,
    close: Arc<Notify>,
}

/// One connection, until it is dropped.
pub(crate) struct Connection {
    all: Arc<Connections>,
    id: u64,
    pub(crate) close: Arc<Notify>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, ConnectionEntry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection. At the maximum, an idle one is asked to close; returns `None` if all are busy.
    pub(crate) fn admit(self: &Arc<Self>, id: u64, most: usize) -> Option<Connection> {
        if self.lock().len() >= most && !self.evict() {
            return None;
        }
        let close = Arc::new(Notify::new());
        let entry = ConnectionEntry {
            stage: ConnectionStage::Idle,
            since: Instant::now(),
            close: Arc::clone(&close),
        };
        self.lock().insert(id, entry);
        Some(Connection { all: Arc::clone(self), id, close })
    }

    /// Asks the connection to close that was idle longest, or where none is idle, that has waited longest for a body.
    pub(crate) fn evict(&self) -> bool {
        let mut open = self.lock();
        let waiting = open.iter().filter(|(_, entry)| entry.stage < ConnectionStage::Answer);
        let Some((_, _, id)) = waiting.map(|(id, entry)| (entry.stage, entry.since, *id)).min() else {
            return false;
        };
        if let Some(entry) = open.remove(&id) {
            entry.close.notify_one();
        }
        true
    }

    /// Requests whose answers have not been handed out.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::SeqCst)
    }
}

impl Connection {
    fn enter(&self, stage: ConnectionStage) {
        if let Some(entry) = self.all.lock().get_mut(&self.id) {
            (entry.stage, entry.since) = (stage, Instant::now());
        }
    }

    /// The head of a request came. Its body, watched, and what ends with the answer.
    pub(crate) fn begin(self: &Arc<Self>, body: Body) -> (Body, BusyRequest) {
        self.all.busy.fetch_add(1, Ordering::SeqCst);
        let busy = BusyRequest { connection: Arc::clone(self) };
        if http_body::Body::is_end_stream(&body) {
            self.enter(ConnectionStage::Answer);
            return (body, busy);
        }
        self.enter(ConnectionStage::Body);
        (Body::new(WatchedBody { body, watch: Arc::clone(self) }), busy)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.lock().remove(&self.id);
    }
}

/// A request that is being answered, until the last byte of its response has been handed out.
pub(crate) struct BusyRequest {
    connection: Arc<Connection>,
}

impl Drop for BusyRequest {
    fn drop(&mut self) {
        self.connection.all.busy.fetch_sub(1, Ordering::SeqCst);
        self.connection.enter(ConnectionStage::Idle);
    }
}

/// A body whose end somebody waits for.
pub(crate) struct WatchedBody<W> {
    pub(crate) body: Body,
    /// It is dropped with the body.
    pub(crate) watch: W,
}

/// What is done at the end of a body.
pub(crate) trait BodyWatch: Unpin {
    fn ended(&mut self) {}
}

/// A request's body, after whose end its connection waits for the answer.
impl BodyWatch for Arc<Connection> {
    fn ended(&mut self) {
        self.enter(ConnectionStage::Answer);
    }
}

/// A response's body, which keeps its request busy, its span open and its memory charged.
impl BodyWatch for (BusyRequest, Option<RequestSpan>, Option<Arc<RequestCharge>>) {}

impl<W: BodyWatch> http_body::Body for WatchedBody<W> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.watch.ended();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_make_room_first_then_unfinished_requests_and_answers_never() {
        let all = Arc::<Connections>::default();
        let admit = |id| all.admit(id, 3).map(Arc::new);
        let open = |id| all.lock().contains_key(&id);
        let [answered, reading, idle] = [1, 2, 3].map(|id| admit(id).unwrap());
        let (_, first) = answered.begin(Body::empty());
        let (_body, second) = reading.begin(Body::from("{}"));
        let fourth = admit(4).unwrap();
        assert!(open(1) && open(2) && !open(3), "the idle one goes first");
        let (_, third) = fourth.begin(Body::empty());
        let fifth = admit(5).unwrap();
        assert!(open(1) && !open(2) && open(4), "then the one that waits for a body");
        let (_, fourth) = fifth.begin(Body::empty());
        assert!(admit(6).is_none(), "all are being answered");
        assert_eq!(all.busy(), 4);
        drop((first, second, third, fourth));
        assert_eq!(all.busy(), 0);
        assert!(admit(6).is_some());
        drop(idle);
    }
}
