//! Waiting with native drivers.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Maximum time from the end of a submission to the callback with its results.
const CALLBACK_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a future that is ready immediately, as wgpu's native futures are. None if it is
/// not.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Makes calls to the device, and returns their result and first error.
pub(crate) fn caught<T>(device: &wgpu::Device, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    let filters =
        [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
    let mut scopes = filters.map(|filter| Some(device.push_error_scope(filter)));
    let made = calls();
    let mut problem = None;
    for scope in scopes.iter_mut().rev() {
        // Scopes must be popped innermost first, and all of them even if one has an error: a scope
        // left open would catch the errors of later calls.
        let caught = scope.take().and_then(|scope| ready(scope.pop()).flatten());
        problem = problem.or(caught);
    }
    (made, problem)
}

pub(crate) type QueueSubmission = wgpu::SubmissionIndex;

/// The last submission.
pub(crate) fn submitted(_queue: &wgpu::Queue, index: wgpu::SubmissionIndex) -> QueueSubmission {
    index
}

/// Waits until the device has completed a submission, or all if none is given.
pub(crate) fn done(
    device: &wgpu::Device,
    _queue: &wgpu::Queue,
    submission_index: Option<QueueSubmission>,
    patience: Duration,
) -> Result<(), wgpu::PollError> {
    device.poll(wgpu::PollType::Wait { submission_index, timeout: Some(patience) }).map(|_| ())
}

/// The result of a callback that was registered before [`done`].
pub(crate) fn received<T>(receiver: &mpsc::Receiver<T>) -> Option<T> {
    // If another thread polls the device concurrently, it may be the one that runs the callback,
    // and may not have done so yet.
    receiver.recv_timeout(CALLBACK_TIMEOUT).ok()
}
