//! Detection of ranks that hang within a step.

use crate::clock::Instant;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Progress counter of the threads of a rank. Each phase of a step, and each part of a long phase,
/// is a beat. The watching thread detects a hung thread, for which other ranks would wait forever.
///
/// All accesses are relaxed: the watch compares numbers that are seconds apart, and no other data
/// depends on them.
#[derive(Debug)]
pub struct ThreadPulse {
    /// In milliseconds. 0: no limit.
    limit: AtomicU64,
    beats: AtomicU64,
    /// Number of `work` guards.
    working: AtomicUsize,
    /// Number of `rest` guards.
    resting: AtomicUsize,
}

/// Default time that a rank may spend in a step without a beat. It is several times the longest
/// part on slow hosts, including first reads of gigabytes of mapped weights from a disk.
pub const HUNG_AFTER: Duration = Duration::from_secs(120);

impl Default for ThreadPulse {
    fn default() -> ThreadPulse {
        let [beats, limit] = [0, HUNG_AFTER.as_millis() as u64].map(AtomicU64::new);
        ThreadPulse { limit, beats, working: AtomicUsize::new(0), resting: AtomicUsize::new(0) }
    }
}

/// Marks a thread as working or resting until it is dropped.
#[derive(Debug)]
pub struct PulseGuard<'p> {
    pulse: &'p ThreadPulse,
    count: &'p AtomicUsize,
}

impl ThreadPulse {
    /// Sets how long a rank may work without a beat; 0 disables the limit.
    pub fn set_limit(&self, limit: Duration) {
        self.limit.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The limit, if any.
    pub fn limit(&self) -> Option<Duration> {
        let limit = self.limit.load(Ordering::Relaxed);
        (limit > 0).then(|| Duration::from_millis(limit))
    }

    /// Records a beat.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Marks the rank as working: others wait for it.
    #[must_use]
    pub fn work(&self) -> PulseGuard<'_> {
        self.guard(&self.working)
    }

    /// Marks a thread as resting: it waits for another rank, or for work outside of steps without a
    /// time limit.
    #[must_use]
    pub fn rest(&self) -> PulseGuard<'_> {
        self.guard(&self.resting)
    }

    fn guard<'p>(&'p self, count: &'p AtomicUsize) -> PulseGuard<'p> {
        // A change of state is progress, even if no poll of the watch falls within it.
        self.beat();
        count.fetch_add(1, Ordering::Relaxed);
        PulseGuard { pulse: self, count }
    }

    /// The number of beats, if the rank works and does not rest.
    pub fn at_work(&self) -> Option<u64> {
        let works = self.working.load(Ordering::Relaxed) > 0 && self.resting.load(Ordering::Relaxed) == 0;
        works.then(|| self.beats.load(Ordering::Relaxed))
    }
}

impl Drop for PulseGuard<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.pulse.beat();
    }
}

/// Polls a pulse.
#[derive(Debug)]
pub struct PulseWatch {
    seen: Option<u64>,
    since: Instant,
}

impl PulseWatch {
    /// Starts the watch at `now`.
    pub fn new(now: Instant) -> PulseWatch {
        PulseWatch { seen: None, since: now }
    }

    /// Polls the pulse. If the rank hangs, returns the limit that it has exceeded.
    pub fn hangs(&mut self, pulse: &ThreadPulse, now: Instant) -> Option<Duration> {
        let at_work = pulse.at_work();
        // The time counts only while the rank works and its number of beats does not change.
        if at_work.is_none() || at_work != self.seen {
            (self.seen, self.since) = (at_work, now);
        }
        pulse.limit().filter(|limit| now.saturating_duration_since(self.since) > *limit)
    }

    /// Restarts the watch after a pause: beats during the pause are not evidence of a hang.
    pub fn forget(&mut self, now: Instant) {
        // The next poll sees a new number of beats, and starts the time again.
        (self.seen, self.since) = (None, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second at which a watch detects a hang, with a limit of 10 s and a poll per second.
    /// `act` is called before each poll.
    fn watched(mut act: impl FnMut(u64, &ThreadPulse)) -> Option<u64> {
        let (pulse, start) = (ThreadPulse::default(), Instant::now());
        pulse.set_limit(Duration::from_secs(10));
        let mut watch = PulseWatch::new(start);
        (0..60).find(|second| {
            act(*second, &pulse);
            watch.hangs(&pulse, start + Duration::from_secs(*second)).is_some()
        })
    }

    #[test]
    fn a_rank_that_works_without_a_beat_hangs() {
        let hung = watched(|second, pulse| {
            if second == 5 {
                std::mem::forget(pulse.work());
            }
        });
        assert_eq!(hung, Some(16));
    }

    #[test]
    fn a_rank_that_beats_waits_or_has_nothing_to_do_does_not_hang() {
        let beats = watched(|second, pulse| {
            if second == 0 {
                std::mem::forget(pulse.work());
            } else if second % 9 == 0 {
                pulse.beat();
            }
        });
        let waits = watched(|second, pulse| {
            if second == 0 {
                std::mem::forget((pulse.work(), pulse.rest()));
            }
        });
        assert_eq!((beats, waits, watched(|_, _| {})), (None, None, None));
    }

    #[test]
    fn without_a_limit_nothing_hangs() {
        let hung = watched(|second, pulse| {
            if second == 5 {
                pulse.set_limit(Duration::ZERO);
                std::mem::forget(pulse.work());
            }
        });
        assert_eq!((hung, ThreadPulse::default().limit()), (None, Some(HUNG_AFTER)));
    }

    #[test]
    fn a_dropped_guard_ends_the_work() {
        let pulse = ThreadPulse::default();
        let work = pulse.work();
        let before = pulse.at_work();
        let rest = pulse.rest();
        assert!(before.is_some() && pulse.at_work().is_none());
        drop(rest);
        // A rank that rests often makes progress, even if no poll falls into a rest.
        assert!(pulse.at_work() > before);
        drop(work);
        assert_eq!(pulse.at_work(), None);
    }
}
