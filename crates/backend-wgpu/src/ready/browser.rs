//! In a browser, by JavaScript Promise Integration: calls from the page are promises to it, and wait here for promises of WebGPU.

use js_sys::futures::future_to_promise;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Whether somebody was woken, and who waits for that.
#[derive(Default)]
struct WakeSignal {
    given: AtomicBool,
    waits: Mutex<Option<Waker>>,
}

impl Wake for WakeSignal {
    fn wake(self: Arc<WakeSignal>) {
        self.given.store(true, Ordering::Release);
        if let Some(waker) = self.waits.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }
}

/// Ready when the signal is given.
struct SignalFuture(Arc<WakeSignal>);

impl Future for SignalFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0.given.swap(false, Ordering::Acquire) {
            return Poll::Ready(());
        }
        *self.0.waits.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Returns when the signal is given; none where the page did not call by a function that returns a promise.
fn suspend(signal: &Arc<WakeSignal>) -> Option<()> {
    let given = SignalFuture(Arc::clone(signal));
    let promise = future_to_promise(async move {
        given.await;
        Ok(js_sys::wasm_bindgen::JsValue::UNDEFINED)
    });
    #[expect(deprecated, reason = "so marked as long as it is new: the standard behind it is finished")]
    js_sys::futures::jspi_block_on_promise(&promise).ok().map(|_| ())
}

/// The result of a future.
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

/// Makes calls to the device. What it says against them comes later, as an uncaptured error: to wait for that after every call would cost
/// several ways to the browser's GPU process.
pub(crate) fn caught<T>(_device: &wgpu::Device, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    (calls(), None)
}

/// Something that the device was given: a signal when it is done.
pub(crate) struct QueueSubmission(Arc<WakeSignal>);

/// All that was submitted so far.
pub(crate) fn submitted(queue: &wgpu::Queue, _index: wgpu::SubmissionIndex) -> QueueSubmission {
    all(queue)
}

fn all(queue: &wgpu::Queue) -> QueueSubmission {
    let signal = Arc::new(WakeSignal::default());
    let waker = Waker::from(Arc::clone(&signal));
    queue.on_submitted_work_done(move || waker.wake());
    QueueSubmission(signal)
}

/// Waits until the device has done something that it was given, or all. Browsers themselves end shaders that hang.
pub(crate) fn done(
    _device: &wgpu::Device,
    queue: &wgpu::Queue,
    submitted: Option<QueueSubmission>,
    _patience: Duration,
) -> Result<(), wgpu::PollError> {
    let QueueSubmission(signal) = submitted.unwrap_or_else(|| all(queue));
    suspend(&signal).ok_or(wgpu::PollError::Timeout)
}

/// What the device says when it is done. WebGPU answers in order: a buffer that was to be mapped before [`done`] is mapped after it.
pub(crate) fn heard<T>(answer: &mpsc::Receiver<T>) -> Option<T> {
    answer.try_recv().ok()
}
