//! The table of open connections, and eviction of idle ones when a new client connects.
//!
//! The number of connections is limited because each takes a file descriptor and buffers. A limit
//! alone would let a crowd of silent clients lock out every other client, so connections that wait
//! for their client are closed to make room.

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

/// What a connection waits for. Lower stages are evicted first, `Answer` never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionStage {
    /// It waits for the next request.
    Idle,
    /// It waits for the rest of a request's body.
    Body,
    /// A request is being answered.
    Answer,
}

struct ConnectionEntry {
    stage: ConnectionStage,
    /// When it entered its stage.
    since: Instant,
    close: Arc<Notify>,
}

/// An entry in the table of connections, removed on drop.
pub(crate) struct Connection {
    all: Arc<Connections>,
    id: u64,
    pub(crate) close: Arc<Notify>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, ConnectionEntry>> {
        // The map is consistent even if a thread has panicked while it held the lock.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a new connection. At the maximum it evicts an idle one, and returns `None` if all are
    /// busy.
    pub(crate) fn admit(self: &Arc<Self>, id: u64, max: usize) -> Option<Connection> {
        if self.lock().len() >= max && !self.evict() {
            return None;
        }
        // Only the accept loop admits connections, so the table cannot fill up before the
        // insertion.
        let close = Arc::new(Notify::new());
        let entry = ConnectionEntry {
            stage: ConnectionStage::Idle,
            since: Instant::now(),
            close: Arc::clone(&close),
        };
        self.lock().insert(id, entry);
        Some(Connection { all: Arc::clone(self), id, close })
    }

    /// Evicts the connection that was idle longest. If none is idle, evicts the one that has waited
    /// longest for a body. Returns false if all are being answered.
    pub(crate) fn evict(&self) -> bool {
        let mut open = self.lock();
        let waiting = open.iter().filter(|(_, entry)| entry.stage < ConnectionStage::Answer);
        let Some((_, _, id)) = waiting.map(|(id, entry)| (entry.stage, entry.since, *id)).min() else {
            return false;
        };
        // The entry is removed here and not when the task ends: the next call must evict another
        // connection. `Notify` keeps the permit if the task is not waiting yet.
        if let Some(entry) = open.remove(&id) {
            entry.close.notify_one();
        }
        true
    }

    /// The number of requests whose responses have not been sent completely.
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

    /// Begins a request whose head was received. Returns its body, and the guard that marks the
    /// connection as busy until the response has been sent.
    pub(crate) fn begin(self: &Arc<Self>, body: Body) -> (Body, BusyRequest) {
        self.all.busy.fetch_add(1, Ordering::SeqCst);
        let busy = BusyRequest { connection: Arc::clone(self) };
        if http_body::Body::is_end_stream(&body) {
            // The end of an empty body is never polled, so `ended` would not be called.
            self.enter(ConnectionStage::Answer);
            return (body, busy);
        }
        self.enter(ConnectionStage::Body);
        (Body::new(WatchedBody { body, watch: Arc::clone(self) }), busy)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Not there any more if the connection was evicted.
        self.all.lock().remove(&self.id);
    }
}

/// Marks a connection as busy until the last byte of the response has been passed to hyper.
pub(crate) struct BusyRequest {
    connection: Arc<Connection>,
}

impl Drop for BusyRequest {
    fn drop(&mut self) {
        self.connection.all.busy.fetch_sub(1, Ordering::SeqCst);
        self.connection.enter(ConnectionStage::Idle);
    }
}

/// A body with a watcher of its end.
pub(crate) struct WatchedBody<W> {
    pub(crate) body: Body,
    /// Dropped with the body, also when the client disconnects before the end.
    pub(crate) watch: W,
}

/// A hook that runs at the end of a body.
pub(crate) trait BodyWatch: Unpin {
    fn ended(&mut self) {}
}

/// A request's body. After its end the connection can no longer be evicted.
impl BodyWatch for Arc<Connection> {
    fn ended(&mut self) {
        self.enter(ConnectionStage::Answer);
    }
}

/// A response's body. It keeps the request busy, its span open and its memory charged.
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
    fn idle_connections_are_evicted_first_then_unfinished_requests_and_never_answers() {
        let all = Arc::<Connections>::default();
        let admit = |id| all.admit(id, 3).map(Arc::new);
        let open = |id| all.lock().contains_key(&id);
        let [answered, reading, idle] = [1, 2, 3].map(|id| admit(id).unwrap());
        // Connection 1 waits for its answer, 2 sends a body, and 3 is idle. The limit is 3.
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
