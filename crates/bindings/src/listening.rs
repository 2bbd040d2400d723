//! The channel from the model's thread to the caller of a generation.

use crate::error::Error;
use crate::process::Process;
use crate::waiting::{self, WaitCheck};
use latent_engine::scheduler::{Canceller, JobEvent, JobId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// What is heard of a job.
pub(crate) type JobEventResult = Result<JobEvent, Error>;

#[derive(Default)]
struct EventChannel {
    /// The caller has dropped its end.
    gone: AtomicBool,
    job: Mutex<Option<(Canceller, JobId)>>,
}

impl EventChannel {
    fn cancel_if_gone(&self) {
        if !self.gone.load(Ordering::SeqCst) {
            return;
        }
        if let Some((canceller, id)) = &*self.job.lock().unwrap_or_else(PoisonError::into_inner) {
            canceller.cancel(*id);
        }
    }
}

/// The thread's end.
pub(crate) struct EventSender {
    sender: Sender<JobEventResult>,
    shared: Arc<EventChannel>,
}

/// The caller's end. Dropped, it ends the job.
pub(crate) struct EventReceiver {
    /// None only while it is dropped.
    receiver: Option<Receiver<JobEventResult>>,
    shared: Arc<EventChannel>,
    process: Process,
}

/// Both ends.
pub(crate) fn pair() -> (EventSender, EventReceiver) {
    let (sender, receiver) = channel();
    let shared = Arc::<EventChannel>::default();
    (
        EventSender { sender, shared: Arc::clone(&shared) },
        EventReceiver { receiver: Some(receiver), shared, process: Process::this() },
    )
}

impl EventSender {
    /// Sends an event of the job; without effect if the caller has dropped its end.
    pub(crate) fn tell(&self, heard: JobEventResult) {
        let _ = self.sender.send(heard);
    }

    /// Whether the caller dropped its end before the job began.
    pub(crate) fn is_gone(&self) -> bool {
        self.shared.gone.load(Ordering::SeqCst)
    }

    /// Sets the job to cancel when the caller drops its end.
    pub(crate) fn bind(&self, canceller: Canceller, id: JobId) {
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some((canceller, id));
        // the caller may have gone meanwhile
        self.shared.cancel_if_gone();
    }
}

impl EventReceiver {
    /// The next event.
    ///
    /// # Errors
    /// The caller does not wait any longer; the job was refused; the engine has failed; this is a forked child.
    pub(crate) fn next(&self, go_on: WaitCheck<'_>) -> JobEventResult {
        self.process.check()?;
        let receiver = self.receiver.as_ref().ok_or_else(Error::gone)?;
        waiting::receive(receiver, go_on)?.unwrap_or_else(|| Err(Error::gone()))
    }

    /// Ends the job.
    pub(crate) fn cancel(&self) {
        // in a forked child a lock may be held for ever, by a thread that is not there
        if self.process.is_this() {
            self.shared.gone.store(true, Ordering::SeqCst);
            self.shared.cancel_if_gone();
        }
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.cancel();
        if !self.process.is_this() {
            std::mem::forget(self.receiver.take());
        }
    }
}
