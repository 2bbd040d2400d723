//! State shared with the MPI thread: message queues and the first error.

use latent_backend::{Channel, RankError, ThreadPulse};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Microseconds for which a waiting rank polls before it sleeps. A core takes longer to wake up
/// than a message to arrive.
pub(crate) const SPIN_MICROS: u128 = 20_000;

/// The kind of a message: on a channel, or about the sending rank itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    On(Channel),
    Heartbeat,
    /// The rank has failed. The message is the cause.
    Failed,
    /// The rank has ended normally.
    Ended,
}

impl MessageKind {
    const ALL: [MessageKind; 6] = [
        MessageKind::On(Channel::Values),
        MessageKind::On(Channel::Commands),
        MessageKind::On(Channel::Answers),
        MessageKind::Heartbeat,
        MessageKind::Failed,
        MessageKind::Ended,
    ];

    /// MPI's tag.
    pub(crate) fn tag(self) -> i32 {
        MessageKind::ALL.iter().position(|kind| *kind == self).unwrap_or_default() as i32
    }

    /// The kind of a tag; `None` for an unknown tag.
    pub(crate) fn of_tag(tag: i32) -> Option<MessageKind> {
        MessageKind::ALL.get(usize::try_from(tag).ok()?).copied()
    }
}

/// A message to be sent.
pub(crate) struct OutgoingMessage {
    pub(crate) to: usize,
    pub(crate) kind: MessageKind,
    pub(crate) message: Vec<u8>,
}

/// How the MPI thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpiThreadEnd {
    /// Normally: together with all other ranks, after everything was sent.
    InOrder,
    /// Immediately, with all other ranks and this exit code.
    Abort(i32),
}

/// The job, known once MPI has started.
pub(crate) struct MpiWorld {
    pub(crate) rank: usize,
    pub(crate) hosts: Vec<String>,
}

#[derive(Default)]
pub(crate) struct MpiMail {
    pub(crate) outgoing: VecDeque<OutgoingMessage>,
    pub(crate) arrived: HashMap<(usize, Channel), VecDeque<Vec<u8>>>,
    /// Number of threads that wait for a message.
    pub(crate) waiting: usize,
    /// The first error of any rank.
    pub(crate) error: Option<RankError>,
    /// Ranks that have ended normally.
    pub(crate) ended: Vec<usize>,
    pub(crate) end: Option<MpiThreadEnd>,
    /// Whether a message was taken from `outgoing` and is being sent.
    pub(crate) sending: bool,
    /// When this process got a signal to end, possibly because another rank is lost.
    pub(crate) hurried: Option<Instant>,
    /// When MPI_Finalize was begun, which waits for all ranks.
    pub(crate) closing: Option<Instant>,
}

/// Time without a message after which a rank counts as lost: twelve heartbeats.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// The same after SIGTERM: mpirun kills this process one second after another rank has ended, and a
/// client should receive the reason before that.
pub(crate) const SHORT_SILENCE: Duration = Duration::from_millis(700);

/// How long after the signal [`SHORT_SILENCE`] applies. A process that still runs then was not
/// ended because of a lost rank. It drains its requests, which may take long, and must not take a
/// busy rank for lost meanwhile.
const SHORT_SILENCE_WINDOW: Duration = Duration::from_secs(2);

impl MpiMail {
    /// The time without a message after which a rank counts as lost.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        let hurries =
            self.hurried.is_some_and(|since| now.saturating_duration_since(since) < SHORT_SILENCE_WINDOW);
        if hurries { SHORT_SILENCE } else { SILENCE }
    }
}

#[derive(Default)]
pub(crate) struct MpiMailbox {
    mail: Mutex<MpiMail>,
    /// Progress of this rank's threads.
    pub(crate) pulse: Arc<ThreadPulse>,
    /// Number of events, which polling threads watch without the lock.
    pub(crate) news: AtomicU64,
    /// Signals a message or an error to waiting threads.
    pub(crate) came: Condvar,
    /// Signals work to the MPI thread.
    pub(crate) work: Condvar,
}

impl MpiMailbox {
    pub(crate) fn mail(&self) -> MutexGuard<'_, MpiMail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the first error and wakes all waiting threads.
    pub(crate) fn went_wrong(&self, error: RankError) {
        // The first one: later errors are usually its consequences.
        self.mail().error.get_or_insert(error);
        self.wake();
    }

    /// Wakes all threads that wait for a message.
    pub(crate) fn wake(&self) {
        // Release, after the message was stored: a thread that sees the new number finds the
        // message.
        self.news.fetch_add(1, Ordering::Release);
        // A waiting thread holds the lock between its last check of `news` and its sleep. Taking
        // the lock here waits until it sleeps, so that the notification is not lost.
        drop(self.mail());
        self.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_shortens_the_allowed_silence_for_two_seconds() {
        let now = Instant::now();
        let silence = |hurried: Option<Instant>, seconds| {
            MpiMail { hurried, ..MpiMail::default() }.silence(now + Duration::from_secs(seconds))
        };
        assert_eq!(silence(None, 0), SILENCE);
        assert_eq!([0, 1].map(|seconds| silence(Some(now), seconds)), [SHORT_SILENCE; 2]);
        // During a long drain, a quiet rank does not count as lost.
        assert_eq!([2, 30].map(|seconds| silence(Some(now), seconds)), [SILENCE; 2]);
    }
}
