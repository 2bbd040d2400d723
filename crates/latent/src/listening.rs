//! The channel from the model's thread to the reader of an answer, which may block or await.

use crate::error::Error;
use crate::process::Process;
use crate::waiting::{PAUSE, WaitCheck};
use latent_engine::scheduler::{Canceller, JobEvent, JobId, Refusal};
use latent_engine::worker::JobReceiver;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An event of a job, or the error that ends it.
pub(crate) type JobEventResult = Result<JobEvent, Error>;

#[derive(Default)]
struct EventQueue {
    events: VecDeque<JobEventResult>,
    /// Whether the sender has been dropped.
    closed: bool,
    /// The task to wake at the next event.
    waker: Option<Waker>,
}

#[derive(Default)]
struct EventChannel {
    queue: Mutex<EventQueue>,
    arrived: Condvar,
    /// Whether the caller has cancelled the job.
    cancelled: AtomicBool,
    /// Set when the scheduler has accepted the job.
    job: Mutex<Option<(Canceller, JobId)>>,
}

impl EventChannel {
    fn queue(&self) -> MutexGuard<'_, EventQueue> {
        // A poisoned lock is usable: no update of the queue can panic halfway.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue and wakes the receiver.
    fn change(&self, change: impl FnOnce(&mut EventQueue)) {
        let waker = {
            let mut queue = self.queue();
            change(&mut queue);
            queue.waker.take()
        };
        // Woken without the lock: `wake` may poll the task on this thread, which locks the queue.
        self.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Forwards a cancellation to the scheduler, once the job has an id.
    fn cancel_if_wanted(&self) {
        // Both `cancel` and `accepted` set their own value first and then call this. Whichever
        // locks `job` second sees both values, so no cancellation is lost.
        if !self.cancelled.load(Ordering::SeqCst) {
            return;
        }
        if let Some((canceller, id)) = &*self.job.lock().unwrap_or_else(PoisonError::into_inner) {
            canceller.cancel(*id);
        }
    }
}

/// The end of the model's thread.
pub(crate) struct EventSender {
    channel: Arc<EventChannel>,
}

/// The caller's end. Dropping it cancels the job.
pub(crate) struct EventReceiver {
    channel: Arc<EventChannel>,
    process: Process,
}

/// Cancels one answer, from any thread and at any time. It has no effect on an answer that has
/// ended or on other answers. The running step may still complete, with up to one token and its
/// drafts.
///
/// ```
/// # use latent::Model;
/// # let model = Model::demo().context(256).load()?;
/// let mut answer = model.complete("Once upon a time").start()?;
/// let canceller = answer.canceller();
/// let first = answer.next().expect("a piece")?;
/// std::thread::spawn(move || canceller.cancel()).join().unwrap();
/// let done = answer.finish()?; // what there was until then
/// assert!(done.text.starts_with(&first.text));
/// # Ok::<(), latent::Error>(())
/// ```
#[derive(Clone)]
pub struct AnswerCanceller {
    channel: Arc<EventChannel>,
    process: Process,
}

/// Creates both ends.
pub(crate) fn pair() -> (EventSender, EventReceiver) {
    let channel = Arc::<EventChannel>::default();
    (EventSender { channel: Arc::clone(&channel) }, EventReceiver { channel, process: Process::this() })
}

impl EventSender {
    /// Sends an event of the job. Without effect if the caller has dropped its end.
    fn send(&self, event: JobEventResult) {
        // Unbounded: a slow reader must not block the model's thread, which runs all other answers
        // too. The length of the answer bounds the queue.
        self.channel.change(|queue| queue.events.push_back(event));
    }
}

impl JobReceiver for EventSender {
    fn accepted(&self, canceller: Canceller, jobs: Vec<JobId>) {
        // `Model::submit` requests no further choices, so there is at most one job.
        let job = jobs.first().map(|id| (canceller, *id));
        *self.channel.job.lock().unwrap_or_else(PoisonError::into_inner) = job;
        // The caller may have cancelled before the job had an id.
        self.channel.cancel_if_wanted();
    }

    fn refused(&self, refusal: Refusal) {
        // `submit` has returned by now, so the caller learns of the refusal from its first read.
        self.send(Err(refusal.into()));
    }

    fn event(&self, _choice: usize, event: JobEvent) {
        self.send(Ok(event));
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.channel.change(|queue| queue.closed = true);
    }
}

/// The next event of a queue. `None` if it may get one later.
fn take(queue: &mut EventQueue) -> Option<JobEventResult> {
    let event = queue.events.pop_front();
    // A job's last event comes before its sender is dropped. An empty queue without a sender means
    // that the model's thread has failed.
    if event.is_none() && queue.closed { Some(Err(Error::gone())) } else { event }
}

impl EventReceiver {
    /// Waits for the next event.
    ///
    /// # Errors
    /// If the job was refused, the engine has failed, or this is a forked child.
    pub(crate) fn next(&self) -> JobEventResult {
        // A forked child has no thread that would send the event.
        self.process.check()?;
        let mut queue = self.channel.queue();
        loop {
            if let Some(event) = take(&mut queue) {
                return event;
            }
            queue = self.channel.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the next event while `go_on` returns true.
    ///
    /// # Errors
    /// As for [`next`](Self::next), and if `go_on` returns false.
    pub(crate) fn next_while(&self, go_on: WaitCheck<'_>) -> JobEventResult {
        // Before the lock, which a thread that the child lacks may have held at the fork. Also in
        // `poll_next`.
        self.process.check()?;
        // Called before each event, not only after a timeout: otherwise a caller that gets events
        // quickly could never stop.
        while go_on() {
            let queue = self.channel.queue();
            let waited = self
                .channel
                .arrived
                .wait_timeout_while(queue, PAUSE, |queue| queue.events.is_empty() && !queue.closed);
            if let Some(event) = take(&mut waited.unwrap_or_else(PoisonError::into_inner).0) {
                return event;
            }
        }
        Err(Error::cancelled())
    }

    /// Polls for the next event. The task is woken by it.
    #[cfg_attr(not(feature = "stream"), allow(dead_code, reason = "for the feature stream"))]
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<JobEventResult> {
        self.process.check()?;
        let mut queue = self.channel.queue();
        match take(&mut queue) {
            Some(event) => Poll::Ready(event),
            None => {
                // By the contract of `poll_next`, only the latest waker is woken.
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// A handle that cancels the job.
    pub(crate) fn canceller(&self) -> AnswerCanceller {
        AnswerCanceller { channel: Arc::clone(&self.channel), process: self.process }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        // Without a reader, the answer would run to its end and take rows of every batch.
        self.canceller().cancel();
    }
}

impl AnswerCanceller {
    /// Ends the answer. Its text so far remains, and it stops with the reason
    /// [`StopReason::Interrupted`](crate::StopReason::Interrupted).
    pub fn cancel(&self) {
        // In a forked child, the locks may be held by threads that the child lacks, and would never
        // be released.
        if self.process.is_this() {
            self.channel.cancelled.store(true, Ordering::SeqCst);
            self.channel.cancel_if_wanted();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn prompt(done: usize) -> JobEvent {
        JobEvent::Prompt { done, total: 2 }
    }

    #[test]
    fn a_caller_can_stop_waiting_and_resume() {
        let (sender, receiver) = pair();
        let mut asked = 0;
        let waited = receiver.next_while(&mut || {
            asked += 1;
            asked < 3
        });
        assert_eq!((waited, asked), (Err(Error::cancelled()), 3));
        sender.send(Ok(prompt(1)));
        assert_eq!(receiver.next_while(&mut || false), Err(Error::cancelled()));
        assert_eq!(receiver.next_while(&mut || true), Ok(prompt(1)));
        drop(sender);
        assert_eq!(receiver.next_while(&mut || true), Err(Error::gone()));
        assert_eq!(receiver.next(), Err(Error::gone()));
    }

    #[test]
    fn a_task_is_woken_by_each_event_and_by_the_end() {
        let (sender, receiver) = pair();
        let count = Arc::<WakeCount>::default();
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        assert!(receiver.poll_next(&mut context).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        sender.send(Ok(prompt(1)));
        sender.send(Ok(prompt(2)));
        // No task waited for the second event.
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Ok(prompt(1))));
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Ok(prompt(2))));
        assert!(receiver.poll_next(&mut context).is_pending());
        drop(sender);
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert_eq!(receiver.poll_next(&mut context), Poll::Ready(Err(Error::gone())));
    }

    #[test]
    fn a_blocked_caller_is_woken_from_another_thread() {
        let (sender, receiver) = pair();
        let thread = std::thread::spawn(move || sender.send(Ok(prompt(1))));
        assert_eq!(receiver.next(), Ok(prompt(1)));
        assert_eq!(receiver.next(), Err(Error::gone()));
        thread.join().unwrap();
    }
}
