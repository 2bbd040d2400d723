//! State shared with the MPI thread: message queues and the first error.

use latent_backend::{Channel, RankError, ThreadPulse};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Microseconds for which a rank that waits looks again and again: a core that sleeps takes longer to wake than a message to come.
pub(crate) const AWAKE: u128 = 20_000;

/// What a message is: one on a channel, or one about a rank itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    On(Channel),
    /// The rank is there.
    Heartbeat,
    /// The rank cannot go on: the cause.
    Failed,
    /// The rank has ended as it should.
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

    /// The kind of a tag; none of one that no rank sends.
    pub(crate) fn of_tag(tag: i32) -> Option<MessageKind> {
        MessageKind::ALL.get(usize::try_from(tag).ok()?).copied()
    }
}

/// A message to be sent.
pub(crate) struct Letter {
    pub(crate) to: usize,
    pub(crate) kind: MessageKind,
    pub(crate) message: Vec<u8>,
}

/// How the speaker is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpeakerEnd {
    /// With all other ranks, when everything has been sent.
    InOrder,
    /// At once, and the other ranks with it.
    Abort(i32),
}

/// What the speaker finds when MPI has started.
pub(crate) struct MpiWorld {
    pub(crate) rank: usize,
    pub(crate) hosts: Vec<String>,
}

#[derive(Default)]
pub(crate) struct MpiMail {
    pub(crate) outgoing: VecDeque<Letter>,
    pub(crate) arrived: HashMap<(usize, Channel), VecDeque<Vec<u8>>>,
    /// Threads that wait for a message.
    pub(crate) waiting: usize,
    /// The first thing that went wrong with another rank.
    pub(crate) error: Option<RankError>,
    /// Ranks that have ended as they should.
    pub(crate) ended: Vec<usize>,
    pub(crate) end: Option<SpeakerEnd>,
    /// Whether a message has left `outgoing` and is not sent yet.
    pub(crate) sending: bool,
    /// When this process was told to end, perhaps because another rank is gone.
    pub(crate) hurried: Option<Instant>,
    /// Since when MPI itself is being ended, which waits for all ranks.
    pub(crate) closing: Option<Instant>,
}

/// A rank of which nothing is heard for so long is gone.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);

/// The same after SIGTERM: mpirun kills this process one second after another rank has ended, and a
/// client should receive the reason before that.
pub(crate) const HURRIED: Duration = Duration::from_millis(700);

/// How long it is the same for: a process that is still there by then was not told to end because a rank is gone, and lets running requests end, which may take
/// as long as their answers.
const HURRY: Duration = Duration::from_secs(2);

impl MpiMail {
    /// How long a rank may be silent.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        let hurries = self.hurried.is_some_and(|since| now.saturating_duration_since(since) < HURRY);
        if hurries { HURRIED } else { SILENCE }
    }
}

#[derive(Default)]
pub(crate) struct MpiMailbox {
    mail: Mutex<MpiMail>,
    /// What the threads of this rank tell of how far they are.
    pub(crate) pulse: Arc<ThreadPulse>,
    /// How often something came, for those who wait awake.
    pub(crate) news: AtomicU64,
    /// Something has arrived, or gone wrong.
    pub(crate) came: Condvar,
    /// There is something to do for the speaker.
    pub(crate) work: Condvar,
}

impl MpiMailbox {
    pub(crate) fn mail(&self) -> MutexGuard<'_, MpiMail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first error, and wakes all who wait.
    pub(crate) fn went_wrong(&self, error: RankError) {
        self.mail().error.get_or_insert(error);
        self.tell();
    }

    /// Wakes all who wait for a message.
    pub(crate) fn tell(&self) {
        self.news.fetch_add(1, Ordering::Release);
        // wait for the lock, which a waiting thread holds between its check and its sleep
        drop(self.mail());
        self.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_soon_too_long_for_a_moment_after_a_signal() {
        let now = Instant::now();
        let silence = |hurried: Option<Instant>, seconds| {
            MpiMail { hurried, ..MpiMail::default() }.silence(now + Duration::from_secs(seconds))
        };
        assert_eq!(silence(None, 0), SILENCE);
        assert_eq!([0, 1].map(|seconds| silence(Some(now), seconds)), [HURRIED; 2]);
        // a drain that takes longer takes no quiet rank for dead
        assert_eq!([2, 30].map(|seconds| silence(Some(now), seconds)), [SILENCE; 2]);
    }
}
