//! Masks computed while the model runs its step.

use crate::cpu_time::thread_time;
use crate::watch::Watchdog;
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// By how much the priority of threads that compile grammars and compute masks is lower: answers without a grammar go on meanwhile.
pub(crate) const GIVE_WAY: u8 = 5;

/// A state of a grammar, and the tokens that were chosen since.
pub(crate) struct MaskWork {
    pub(crate) matcher: Box<Matcher>,
    pub(crate) tokens: Vec<u32>,
    /// CPU time that the masks of the same answer took before.
    pub(crate) spent: Duration,
}

/// What came of it: the state after the tokens, and what may follow, or why nothing can.
pub(crate) struct MaskOutcome {
    pub(crate) matcher: Box<Matcher>,
    pub(crate) mask: Result<SimpleVob, String>,
    /// CPU time that the masks of the answer took so far.
    pub(crate) spent: Duration,
}

impl MaskWork {
    fn run(self, watch: &Watchdog) -> MaskOutcome {
        let MaskWork { mut matcher, tokens, spent } = self;
        let next = |matcher: &mut Matcher| {
            matcher.consume_tokens(&tokens)?;
            matcher.compute_mask_or_eos()
        };
        let (start, watched) = (thread_time(), watch.start(matcher.cancellation_handle()));
        let mask = match catch_unwind(AssertUnwindSafe(|| next(&mut matcher))) {
            Ok(mask) => mask.map_err(|error| error.to_string()),
            Err(_) => Err("a library fails on it; please report this".to_owned()),
        };
        drop(watched);
        let mask = match matcher.is_cancelled() {
            true => Err(format!(
                "one of its masks takes more than {:.1} s of CPU time: make the grammar less ambiguous",
                watch.limit().as_secs_f64()
            )),
            false => mask,
        };
        MaskOutcome { matcher, mask, spent: spent + thread_time().saturating_sub(start) }
    }
}

enum MaskState {
    Waiting(MaskWork),
    Running,
    Done(MaskOutcome),
    Taken,
}

impl MaskState {
    fn is_pending(&self) -> bool {
        matches!(self, MaskState::Waiting(_) | MaskState::Running)
    }
}

/// Work that a thread of the pool does, or the thread that needs the result before one has begun.
pub(crate) struct MaskSlot {
    state: Mutex<MaskState>,
    done: Condvar,
    /// Stops it while it runs.
    cancel: Option<llguidance::CancellationHandle>,
    spent: Duration,
    watch: Arc<Watchdog>,
}

impl MaskSlot {
    fn new(work: MaskWork, watch: &Arc<Watchdog>) -> MaskSlot {
        MaskSlot {
            cancel: work.matcher.cancellation_handle(),
            spent: work.spent,
            state: Mutex::new(MaskState::Waiting(work)),
            done: Condvar::new(),
            watch: Arc::clone(watch),
        }
    }

    fn lock(&self) -> MutexGuard<'_, MaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work unless it has begun.
    fn work(&self) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut *state, MaskState::Running);
        let MaskState::Waiting(work) = before else {
            *state = before;
            return;
        };
        drop(state);
        let outcome = work.run(&self.watch);
        *self.lock() = MaskState::Done(outcome);
        self.done.notify_all();
    }

    /// Whether the result is there, after waiting for it up to `limit`.
    pub(crate) fn is_done(&self, limit: Duration) -> bool {
        let state = self.lock();
        if limit.is_zero() {
            return !state.is_pending();
        }
        let waited = self.done.wait_timeout_while(state, limit, |state| state.is_pending());
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_pending()
    }

    /// The result, for which it may have to do the work itself. None if it was taken before.
    pub(crate) fn take(&self) -> Option<MaskOutcome> {
        self.work();
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut *state, MaskState::Taken) {
                MaskState::Done(outcome) => return Some(outcome),
                MaskState::Taken => return None,
                other => {
                    *state = other;
                    state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Ends the work: its result is not needed any more.
    pub(crate) fn abandon(&self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
        let mut state = self.lock();
        if matches!(&*state, MaskState::Waiting(_)) {
            *state = MaskState::Taken;
        }
    }
}

/// Threads that compute masks; they start with the first work.
pub(crate) struct MaskWorkers {
    queue: Arc<MaskQueue>,
    watch: Arc<Watchdog>,
    threads: usize,
    started: Mutex<bool>,
    /// Whether a thread takes work from the queue.
    served: AtomicBool,
}

#[derive(Default)]
struct MaskQueue {
    waiting: Mutex<WaitingMasks>,
    more: Condvar,
}

#[derive(Default)]
struct WaitingMasks {
    slots: VecDeque<Arc<MaskSlot>>,
    closed: bool,
}

impl MaskQueue {
    fn lock(&self) -> MutexGuard<'_, WaitingMasks> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next work: that of the answer whose masks took the least time so far, so that costly grammars wait for others.
    fn next(&self) -> Option<Arc<MaskSlot>> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            let first = waiting.slots.iter().enumerate().min_by_key(|(at, slot)| (slot.spent, *at));
            if let Some(at) = first.map(|(at, _)| at) {
                return waiting.slots.remove(at);
            }
            waiting = self.more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl MaskWorkers {
    pub(crate) fn new(threads: usize, mask_time: Duration) -> MaskWorkers {
        MaskWorkers {
            queue: Arc::default(),
            watch: Arc::new(Watchdog::new(mask_time)),
            threads: threads.min(latent_threads::MAX_THREADS),
            started: Mutex::new(false),
            served: AtomicBool::new(false),
        }
    }

    /// Whether a thread does the work. Otherwise it is done where the result is taken.
    pub(crate) fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Queues work.
    pub(crate) fn submit(&self, work: MaskWork) -> Arc<MaskSlot> {
        let slot = Arc::new(MaskSlot::new(work, &self.watch));
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            *started = true;
            for _ in 0..self.threads {
                let queue = Arc::clone(&self.queue);
                let run = move || {
                    latent_threads::lower_priority(GIVE_WAY);
                    while let Some(slot) = queue.next() {
                        slot.work();
                    }
                };
                let thread = std::thread::Builder::new().name("grammar-mask".into()).spawn(run);
                self.served.fetch_or(thread.is_ok(), Ordering::Relaxed);
            }
        }
        drop(started);
        if self.is_served() {
            self.queue.lock().slots.push_back(Arc::clone(&slot));
            self.queue.more.notify_one();
        }
        slot
    }
}

impl Drop for MaskWorkers {
    fn drop(&mut self) {
        self.queue.lock().closed = true;
        self.queue.more.notify_all();
        self.watch.close();
    }
}
