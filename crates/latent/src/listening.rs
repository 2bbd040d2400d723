//! The channel from the model's thread to the caller of an answer. An event wakes the caller, who blocks or awaits.

use crate::error::Error;
use crate::process::Process;
use crate::waiting::{PAUSE, WaitCheck};
use latent_engine::scheduler::{Canceller, JobEvent, JobId, Refusal};
use latent_engine::worker::JobReceiver;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// An event of a job, or why none follows.
pub(crate) type JobEventResult = Result<JobEvent, Error>;

#[derive(Default)]
struct EventQueue {
    events: VecDeque<JobEventResult>,
    /// Whether the sender has been dropped.
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct EventChannel {
    queue: Mutex<EventQueue>,
    arrived: Condvar,
    /// Whether the caller wants the job to end.
    cancelled: AtomicBool,
    job: Mutex<Option<(Canceller, JobId)>>,
}

impl EventChannel {
    /// Every change of the queue is whole before anything can panic.
    fn queue(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue and wakes the receiver.
    fn change(&self, change: impl FnOnce(&mut EventQueue)) {
        let waker = {
            let mut queue = self.queue();
            change(&mut queue);
            queue.waker.take()
        };
        self.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn cancel_if_wanted(&self) {
        if !self.cancelled.load(Ordering::SeqCst) {
            return;
        }
        if let Some((canceller, id)) = &*self.job.lock().unwrap_or_else(PoisonError::into_inner) {
            canceller.cancel(*id);
        }
    }
}

/// The thread's end.
pub(crate) struct EventSender {
    channel: Arc<EventChannel>,
}

/// The caller's end. Dropped, it ends the job.
pub(crate) struct EventReceiver {
    channel: Arc<EventChannel>,
    process: Process,
}

/// Cancels one answer, from any thread and at any time. It has no effect on an answer that has ended, nor on any other answer.
/// A step that is running ends first, with up to one token and its drafts.
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

/// Both ends.
pub(crate) fn pair() -> (EventSender, EventReceiver) {
    let channel = Arc::<EventChannel>::default();
    (EventSender { channel: Arc::clone(&channel) }, EventReceiver { channel, process: Process::this() })
}

impl EventSender {
    /// Sends an event of the job; without effect if the caller has dropped its end.
    fn tell(&self, event: JobEventResult) {
        self.channel.change(|queue| queue.events.push_back(event));
    }
}

impl JobReceiver for EventSender {
    fn accepted(&self, canceller: Canceller, jobs: Vec<JobId>) {
        let job = jobs.first().map(|id| (canceller, *id));
        *self.channel.job.lock().unwrap_or_else(PoisonError::into_inner) = job;
        // the caller may have cancelled meanwhile
        self.channel.cancel_if_wanted();
    }

    fn refused(&self, refusal: Refusal) {
        self.tell(Err(refusal.into()));
    }

    fn event(&self, _choice: usize, event: JobEvent) {
        self.tell(Ok(event));
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.channel.change(|queue| queue.closed = true);
    }
}

/// The next event of a queue; none if there may be one later.
fn take(queue: &mut EventQueue) -> Option<JobEventResult> {
    let event = queue.events.pop_front();
    if event.is_none() && queue.closed { Some(Err(Error::gone())) } else { event }
}

impl EventReceiver {
    /// Waits for the next event.
    ///
    /// # Errors
    /// The job was refused; the engine has failed; this is a forked child.
    pub(crate) fn next(&self) -> JobEventResult {
        self.process.check()?;
        let mut queue = self.channel.queue();
        loop {
            if let Some(event) = take(&mut queue) {
                return event;
            }
            queue = self.channel.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the next event as long as `go_on` answers true.
    ///
    /// # Errors
    /// As for [`next`](Self::next), and where `go_on` answers false.
    pub(crate) fn next_while(&self, go_on: WaitCheck<'_>) -> JobEventResult {
        self.process.check()?;
        // asked before each event, so that a caller to whom events come quickly can stop, too
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

    /// The next event, for a task that is woken when it comes.
    #[cfg_attr(not(feature = "stream"), allow(dead_code, reason = "for the feature stream"))]
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<JobEventResult> {
        self.process.check()?;
        let mut queue = self.channel.queue();
        match take(&mut queue) {
            Some(event) => Poll::Ready(event),
            None => {
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// What cancels the job.
    pub(crate) fn canceller(&self) -> AnswerCanceller {
        AnswerCanceller { channel: Arc::clone(&self.channel), process: self.process }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.canceller().cancel();
    }
}

impl AnswerCanceller {
    /// Ends the answer. Its text so far remains, and it stops with the reason
    /// [`StopReason::Interrupted`](crate::StopReason::Interrupted).
    pub fn cancel(&self) {
        // in a forked child a lock may be held for ever, by a thread that the child lacks
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
    fn a_caller_can_give_up_and_go_on() {
        let (sender, receiver) = pair();
        let mut asked = 0;
        let waited = receiver.next_while(&mut || {
            asked += 1;
            asked < 3
        });
        assert_eq!((waited, asked), (Err(Error::cancelled()), 3));
        sender.tell(Ok(prompt(1)));
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
        sender.tell(Ok(prompt(1)));
        sender.tell(Ok(prompt(2)));
        // the second found no task that waits
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
        let thread = std::thread::spawn(move || sender.tell(Ok(prompt(1))));
        assert_eq!(receiver.next(), Ok(prompt(1)));
        assert_eq!(receiver.next(), Err(Error::gone()));
        thread.join().unwrap();
    }
}
