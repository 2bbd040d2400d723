//! Worker threads that compute masks while the model runs its step.

use crate::cpu_time::thread_time;
use crate::watch::Watchdog;
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Priority reduction (nice value) of threads that compile grammars and compute masks.
/// Unconstrained responses continue meanwhile: with it, the 99th percentile of plain requests under
/// `load --hostile` fell from 814 to 372 ms on two cores.
pub(crate) const GIVE_WAY: u8 = 5;

/// A mask to compute: a grammar's state, and the tokens sampled since.
pub(crate) struct MaskWork {
    pub(crate) matcher: Box<Matcher>,
    pub(crate) tokens: Vec<u32>,
    /// CPU time of the previous masks of the same response.
    pub(crate) spent: Duration,
}

/// Result of [`MaskWork`]: the state after the tokens, and the next mask or an error.
pub(crate) struct MaskOutcome {
    pub(crate) matcher: Box<Matcher>,
    pub(crate) mask: Result<SimpleVob, String>,
    /// CPU time of the response's masks so far.
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
        // A panic in llguidance fails this response; the worker continues with others.
        let mask = match catch_unwind(AssertUnwindSafe(|| next(&mut matcher))) {
            Ok(mask) => mask.map_err(|error| error.to_string()),
            Err(_) => Err("a library fails on it; please report this".to_owned()),
        };
        // Ends the watch first: `is_cancelled` below must not change between the mask and the
        // check.
        drop(watched);
        // A cancelled matcher returns its own error, which does not name the limit.
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

/// A mask that a worker thread computes, or the thread that needs it if no worker has started.
pub(crate) struct MaskSlot {
    state: Mutex<MaskState>,
    done: Condvar,
    /// Cancels the computation while it runs.
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

    /// Computes the mask unless another thread has started to.
    fn work(&self) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut *state, MaskState::Running);
        let MaskState::Waiting(work) = before else {
            *state = before;
            return;
        };
        // `abandon` and `is_done` need the lock while the mask is computed.
        drop(state);
        let outcome = work.run(&self.watch);
        *self.lock() = MaskState::Done(outcome);
        self.done.notify_all();
    }

    /// Waits up to `limit` and returns whether the mask is computed.
    pub(crate) fn is_done(&self, limit: Duration) -> bool {
        let state = self.lock();
        // No wait: the condition variable would give up the lock and take it again.
        if limit.is_zero() {
            return !state.is_pending();
        }
        let waited = self.done.wait_timeout_while(state, limit, |state| state.is_pending());
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_pending()
    }

    /// Waits for the result, or computes it if no worker has started. `None` if it was taken
    /// before.
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

    /// Cancels the work. Its result is no longer needed.
    pub(crate) fn abandon(&self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
        let mut state = self.lock();
        // Workers skip it: `work` only runs in the state `Waiting`.
        if matches!(&*state, MaskState::Waiting(_)) {
            *state = MaskState::Taken;
        }
    }
}

/// Pool of threads that compute masks. They start with the first submission.
pub(crate) struct MaskWorkers {
    queue: Arc<MaskQueue>,
    watch: Arc<Watchdog>,
    threads: usize,
    started: Mutex<bool>,
    /// Whether at least one thread was started.
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

    /// Waits for work and takes that of the response whose masks took the least CPU time so far. A
    /// costly grammar then delays only itself.
    fn next(&self) -> Option<Arc<MaskSlot>> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            // Equal times keep the order of submission.
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

    /// Whether a worker thread exists. Otherwise the thread that takes the result computes it.
    pub(crate) fn is_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// Queues a mask.
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
                // The queue's lock orders the work itself; the flag only says whether to queue.
                self.served.fetch_or(thread.is_ok(), Ordering::Relaxed);
            }
        }
        drop(started);
        if self.is_served() {
            // Without a worker the queue would only grow; the thread that calls `take` computes the
            // mask.
            self.queue.lock().slots.push_back(Arc::clone(&slot));
            self.queue.more.notify_one();
        }
        slot
    }
}

impl Drop for MaskWorkers {
    fn drop(&mut self) {
        // The threads are not joined: one may be computing a mask, which takes up to `mask_time`.
        // It ends after that mask.
        self.queue.lock().closed = true;
        self.queue.more.notify_all();
        self.watch.close();
    }
}
