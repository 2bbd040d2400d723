//! Waiting in a browser, by JavaScript Promise Integration (JSPI): the page's call returns a
//! promise, and WebAssembly is suspended here until WebGPU's promise is resolved.

use js_sys::futures::future_to_promise;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A flag that a future can wait for.
#[derive(Default)]
struct WakeSignal {
    set: AtomicBool,
    waiter: Mutex<Option<Waker>>,
}

impl Wake for WakeSignal {
    fn wake(self: Arc<WakeSignal>) {
        // The flag is set before the waker is taken. `poll` stores its waker after it has read the
        // flag, and both run on the page's only thread, so the signal is not lost.
        self.set.store(true, Ordering::Release);
        if let Some(waker) = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }
}

/// Ready when the signal is set. Clears it.
struct SignalFuture(Arc<WakeSignal>);

impl Future for SignalFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0.set.swap(false, Ordering::Acquire) {
            return Poll::Ready(());
        }
        *self.0.waiter.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Suspends WebAssembly until the signal is set. None if the page's call does not return a promise,
/// so that it cannot be suspended.
fn suspend(signal: &Arc<WakeSignal>) -> Option<()> {
    let signalled = SignalFuture(Arc::clone(signal));
    let promise = future_to_promise(async move {
        signalled.await;
        Ok(js_sys::wasm_bindgen::JsValue::UNDEFINED)
    });
    #[expect(deprecated, reason = "so marked as long as it is new: the standard behind it is finished")]
    js_sys::futures::jspi_block_on_promise(&promise).ok().map(|_| ())
}

/// Waits for the result of a future.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    let signal = Arc::new(WakeSignal::default());
    let waker = Waker::from(Arc::clone(&signal));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return Some(result),
            Poll::Pending => suspend(&signal)?,
        }
    }
}

/// Makes calls to the device. Their errors are reported later as uncaptured errors.
pub(crate) fn caught<T>(_device: &wgpu::Device, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    // Waiting for errors after every call would cost several round trips to the browser's GPU
    // process.
    (calls(), None)
}

/// A submission, as a signal that is set when it is complete.
pub(crate) struct QueueSubmission(Arc<WakeSignal>);

/// Everything that was submitted so far.
pub(crate) fn submitted(queue: &wgpu::Queue, _index: wgpu::SubmissionIndex) -> QueueSubmission {
    all(queue)
}

fn all(queue: &wgpu::Queue) -> QueueSubmission {
    let signal = Arc::new(WakeSignal::default());
    let waker = Waker::from(Arc::clone(&signal));
    queue.on_submitted_work_done(move || waker.wake());
    QueueSubmission(signal)
}

/// Waits until the device has completed a submission, or all if none is given. The browser has a
/// timeout of its own, which ends shaders that hang.
pub(crate) fn done(
    _device: &wgpu::Device,
    queue: &wgpu::Queue,
    submitted: Option<QueueSubmission>,
    _patience: Duration,
) -> Result<(), wgpu::PollError> {
    let QueueSubmission(signal) = submitted.unwrap_or_else(|| all(queue));
    suspend(&signal).ok_or(wgpu::PollError::Timeout)
}

/// The result of a callback that was registered before [`done`].
pub(crate) fn received<T>(receiver: &mpsc::Receiver<T>) -> Option<T> {
    // It need not be waited for: WebGPU resolves promises in order, so a buffer is mapped before
    // the later `done` returns.
    receiver.try_recv().ok()
}
