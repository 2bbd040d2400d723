//! Resumable streams: a client that names its conversation can reconnect and read its answer from
//! any byte, as in llama.cpp's server.

use crate::error::{ApiError, ErrorKind};
use crate::ids;
use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::unfold;
use latent_engine::scheduler::FairnessKey;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Maximum bytes of one stream that are stored. Of a longer stream, the last bytes are.
const MAX_BYTES: usize = 4 << 20;

/// How long a stream is stored after its end.
const RETENTION: Duration = Duration::from_secs(300);

/// Maximum length of a conversation's name in bytes.
pub(crate) const MAX_NAME: usize = 1024;

/// Maximum bytes per read. Each read copies under the lock, and hyper holds one read per reader.
const MAX_READ: usize = 65_536;

/// The owner and name of a conversation. API keys cannot read each other's streams.
type SessionKey = (FairnessKey, String);

/// The streams of named conversations.
pub(crate) struct StreamSessions {
    inner: Mutex<SessionTable>,
    /// Maximum bytes of all streams.
    budget: usize,
}

#[derive(Default)]
struct SessionTable {
    sessions: HashMap<SessionKey, StreamSession>,
    /// Stored bytes of all sessions.
    bytes: usize,
    /// Number of sessions so far.
    count: u64,
}

struct StreamSession {
    /// Identifies the stream: the same conversation may have begun another one, and readers and the
    /// producer of the old one must not touch it.
    number: u64,
    is_streaming: bool,
    /// When it ended: as an instant, and in seconds since 1970.
    ended: Option<(Instant, u64)>,
    started: u64,
    bytes: Vec<u8>,
    /// Bytes that were dropped before the stored ones.
    dropped: usize,
    /// Wakes readers. They end when it is dropped.
    changes: watch::Sender<()>,
    producer: Option<AbortHandle>,
}

/// The status of a stream.
pub(crate) struct SessionStatus {
    pub(crate) name: String,
    pub(crate) is_done: bool,
    pub(crate) total_bytes: usize,
    pub(crate) started: u64,
    pub(crate) ended: u64,
}

/// The writer of a stream. The stream ends when it is dropped.
pub(crate) struct StreamProducer {
    sessions: Arc<StreamSessions>,
    key: SessionKey,
    number: u64,
}

impl SessionTable {
    fn remove(&mut self, key: &SessionKey) {
        let Some(session) = self.sessions.remove(key) else { return };
        self.bytes -= session.bytes.len();
        // Cancels the request, which is still running: no client can reach its answer any more.
        if let Some(producer) = session.producer.filter(|_| session.ended.is_none()) {
            producer.abort();
        }
    }

    /// Removes streams whose retention has expired.
    fn remove_old(&mut self) {
        let now = Instant::now();
        let is_old = |session: &StreamSession| session.ended.is_some_and(|(at, _)| now - at > RETENTION);
        let old: Vec<SessionKey> =
            self.sessions.iter().filter(|(_, session)| is_old(session)).map(|(key, _)| key.clone()).collect();
        old.iter().for_each(|key| self.remove(key));
    }

    /// Removes ended streams, the oldest first, until all streams fit the budget.
    fn shrink(&mut self, budget: usize) {
        while self.bytes > budget {
            let ended = self.sessions.iter().filter_map(|(key, session)| Some((session.ended?.0, key)));
            let Some(key) = ended.min_by_key(|(at, _)| *at).map(|(_, key)| key.clone()) else { return };
            self.remove(&key);
        }
    }

    fn session(&mut self, key: &SessionKey, number: u64) -> Option<&mut StreamSession> {
        self.sessions.get_mut(key).filter(|session| session.number == number)
    }
}

impl StreamSessions {
    pub(crate) fn new(budget: usize) -> Arc<StreamSessions> {
        Arc::new(StreamSessions { inner: Mutex::default(), budget })
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the stream of a new request. An earlier stream of the conversation is cancelled.
    pub(crate) fn begin(self: &Arc<StreamSessions>, owner: FairnessKey, name: String) -> StreamProducer {
        let key = (owner, name);
        let mut inner = self.lock();
        inner.remove_old();
        inner.remove(&key);
        inner.count += 1;
        let number = inner.count;
        let session = StreamSession {
            number,
            is_streaming: false,
            ended: None,
            started: ids::now(),
            bytes: Vec::new(),
            dropped: 0,
            changes: watch::Sender::new(()),
            producer: None,
        };
        inner.sessions.insert(key.clone(), session);
        StreamProducer { sessions: Arc::clone(self), key, number }
    }

    /// Reads the stream of a conversation from byte `from`: the stored bytes, then new ones.
    pub(crate) fn read(
        self: &Arc<StreamSessions>,
        owner: FairnessKey,
        name: &str,
        from: usize,
    ) -> Result<Body, ApiError> {
        let key = (owner, name.to_owned());
        let mut inner = self.lock();
        inner.remove_old();
        let Some(session) = inner.sessions.get(&key) else {
            let problem = "this conversation has no running or recent stream";
            return Err(ApiError::new(ErrorKind::NotFound, problem));
        };
        if !session.is_streaming {
            let problem =
                "the answer of this conversation has not started: its model is loading, or it is queued";
            return Err(ApiError::new(ErrorKind::Unavailable, problem).retry(Duration::from_secs(1)));
        }
        // `from` may be the end: a client that has read everything waits for more.
        let end = session.dropped + session.bytes.len();
        if from < session.dropped || from > end {
            let problem =
                format!("byte {from} is not available: the stream has bytes {} to {end}", session.dropped);
            return Err(ApiError::field("from", problem));
        }
        Ok(self.body(&key, session, from))
    }

    fn body(self: &Arc<StreamSessions>, key: &SessionKey, session: &StreamSession, from: usize) -> Body {
        struct Reader {
            sessions: Arc<StreamSessions>,
            key: SessionKey,
            number: u64,
            changes: watch::Receiver<()>,
            at: usize,
        }
        let reader = Reader {
            sessions: Arc::clone(self),
            key: key.clone(),
            number: session.number,
            changes: session.changes.subscribe(),
            at: from,
        };
        Body::from_stream(unfold(reader, |mut reader| async move {
            loop {
                // Before the read: a change after it wakes `changed`, so that none is missed.
                reader.changes.borrow_and_update();
                match reader.sessions.read_at(&reader.key, reader.number, reader.at) {
                    SessionRead::Bytes(bytes) => {
                        reader.at += bytes.len();
                        return Some((Ok(bytes), reader));
                    }
                    SessionRead::Lost => {
                        // The next read ends the body after this error.
                        reader.at = usize::MAX;
                        return Some((
                            Err(io::Error::other("the reader is too slow for this stream")),
                            reader,
                        ));
                    }
                    SessionRead::End => return None,
                    // An error: the session was removed, and its sender with it.
                    SessionRead::None => reader.changes.changed().await.ok()?,
                }
            }
        }))
    }

    fn read_at(&self, key: &SessionKey, number: u64, at: usize) -> SessionRead {
        let mut inner = self.lock();
        let Some(session) = inner.session(key, number) else { return SessionRead::End };
        let Some(start) = at.checked_sub(session.dropped) else { return SessionRead::Lost };
        match session.bytes.get(start..) {
            Some(rest) if !rest.is_empty() => {
                // Copied: the stored bytes move when old ones are dropped.
                SessionRead::Bytes(Bytes::copy_from_slice(&rest[..rest.len().min(MAX_READ)]))
            }
            // `usize::MAX` is the position after a lost read.
            _ if session.ended.is_some() || at == usize::MAX => SessionRead::End,
            _ => SessionRead::None,
        }
    }

    /// Cancels and removes the stream of a conversation.
    pub(crate) fn remove(&self, owner: FairnessKey, name: &str) {
        self.lock().remove(&(owner, name.to_owned()));
    }

    /// The streams of these conversations. `NAME` also finds `NAME::MODEL`, the names that
    /// llama.cpp's page uses.
    pub(crate) fn find(&self, owner: FairnessKey, names: &[String]) -> Vec<SessionStatus> {
        let mut inner = self.lock();
        inner.remove_old();
        let is_asked = |name: &str| {
            names.iter().any(|asked| {
                name.strip_prefix(asked.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            })
        };
        let own = inner.sessions.iter().filter(|((key, name), _)| *key == owner && is_asked(name));
        let mut found: Vec<SessionStatus> = own
            .map(|((_, name), session)| SessionStatus {
                name: name.clone(),
                is_done: session.ended.is_some(),
                total_bytes: session.dropped + session.bytes.len(),
                started: session.started,
                ended: session.ended.map_or(0, |(_, at)| at),
            })
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

/// The result of a read.
enum SessionRead {
    Bytes(Bytes),
    /// Nothing yet.
    None,
    End,
    /// The requested bytes were dropped.
    Lost,
}

impl StreamProducer {
    /// Sets the task that is aborted if the conversation is removed.
    pub(crate) fn aborts(&self, producer: AbortHandle) {
        match self.sessions.lock().session(&self.key, self.number) {
            Some(session) => session.producer = Some(producer),
            None => producer.abort(),
        }
    }

    /// The answer is a stream. Its first reader.
    pub(crate) fn start(&self) -> Body {
        let mut inner = self.sessions.lock();
        let Some(session) = inner.session(&self.key, self.number) else { return Body::empty() };
        session.is_streaming = true;
        self.sessions.body(&self.key, session, 0)
    }

    /// Removes the session: the answer is not a stream, or the request failed.
    pub(crate) fn forget(&self) {
        let mut inner = self.sessions.lock();
        if let Some(session) = inner.session(&self.key, self.number) {
            // `remove` would abort this task before it has sent its response.
            session.producer = None;
            inner.remove(&self.key);
        }
    }

    /// Appends bytes. Over the limits, bytes are dropped from the beginning.
    pub(crate) fn push(&self, bytes: &[u8]) {
        let mut inner = self.sessions.lock();
        // Counted first, so that streams that have ended make room before this one loses bytes.
        inner.bytes += bytes.len();
        inner.shrink(self.sessions.budget);
        let over = inner.bytes.saturating_sub(self.sessions.budget);
        let Some(session) = inner.session(&self.key, self.number) else {
            // The conversation was removed or has begun another stream.
            inner.bytes -= bytes.len();
            return;
        };
        session.bytes.extend_from_slice(bytes);
        let long = session.bytes.len().saturating_sub(MAX_BYTES);
        let mut drop = long.max(over).min(session.bytes.len());
        if drop > 0 {
            // Drop at least a quarter: `drain` moves all remaining bytes, which per event would be
            // quadratic.
            drop = drop.max(session.bytes.len() / 4);
            session.bytes.drain(..drop);
            session.dropped += drop;
        }
        session.changes.send_replace(());
        inner.bytes -= drop;
    }
}

impl Drop for StreamProducer {
    fn drop(&mut self) {
        let mut inner = self.sessions.lock();
        let Some(session) = inner.session(&self.key, self.number) else { return };
        session.ended = Some((Instant::now(), ids::now()));
        // Stored for minutes, and `bytes` counts lengths, not capacities.
        session.bytes.shrink_to_fit();
        session.changes.send_replace(());
        // The request failed before its response began.
        if !session.is_streaming {
            inner.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(sessions: &StreamSessions, asked: &[&str]) -> Vec<(String, bool, usize)> {
        let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
        let found = sessions.find(FairnessKey(1), &asked);
        found.into_iter().map(|status| (status.name, status.is_done, status.total_bytes)).collect()
    }

    #[test]
    fn streams_are_bounded_together_and_the_oldest_that_ended_go_first() {
        let sessions = StreamSessions::new(1000);
        let begin = |name: &str| {
            let producer = sessions.begin(FairnessKey(1), name.into());
            drop(producer.start());
            producer
        };
        let first = begin("a");
        first.push(&[0; 400]);
        drop(first);
        let second = begin("b::model");
        second.push(&[0; 500]);
        assert_eq!(
            names(&sessions, &["a", "b", "c"]),
            [("a".into(), true, 400), ("b::model".into(), false, 500)]
        );
        second.push(&[0; 200]);
        assert_eq!(names(&sessions, &["a", "b"]), [("b::model".into(), false, 700)]);
        // A single stream loses its own beginning.
        second.push(&[0; 900]);
        assert!(sessions.lock().bytes <= 1000);
        assert_eq!(names(&sessions, &["b"]), [("b::model".into(), false, 1600)]);
        assert!(sessions.read(FairnessKey(1), "b::model", 0).unwrap_err().message.contains("byte 0"));
        assert!(sessions.read(FairnessKey(1), "b::model", 1600).is_ok());
        // Another owner.
        assert!(sessions.read(FairnessKey(2), "b::model", 1600).is_err());
        // A new request of the conversation replaces the stream; the old producer writes nothing.
        let third = begin("b::model");
        second.push(&[0; 10]);
        drop(second);
        assert_eq!(names(&sessions, &["b"]), [("b::model".into(), false, 0)]);
        sessions.remove(FairnessKey(1), "b::model");
        third.push(&[0; 10]);
        assert_eq!((names(&sessions, &["b"]).len(), sessions.lock().bytes), (0, 0));
    }
}
