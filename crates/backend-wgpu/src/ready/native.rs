//! On a machine's own drivers.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long results that the device has finished may take to be handed out.
const ANSWER: Duration = Duration::from_secs(60);

/// The result of a future that is ready at once, as those of native drivers are; none if it would wait.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Makes calls to the device; with what it says against them.
pub(crate) fn caught<T>(device: &wgpu::Device, calls: impl FnOnce() -> T) -> (T, Option<wgpu::Error>) {
    let filters =
        [wgpu::ErrorFilter::Internal, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation];
    let mut scopes = filters.map(|filter| Some(device.push_error_scope(filter)));
    let made = calls();
    let mut problem = None;
    for scope in scopes.iter_mut().rev() {
        // the innermost scope is popped first, and every scope is
        let caught = scope.take().and_then(|scope| ready(scope.pop()).flatten());
        problem = problem.or(caught);
    }
    (made, problem)
}

/// Something that the device was given.
pub(crate) type QueueSubmission = wgpu::SubmissionIndex;

/// What was submitted last.
pub(crate) fn submitted(_queue: &wgpu::Queue, index: wgpu::SubmissionIndex) -> QueueSubmission {
    index
}

/// Waits until the device has done something that it was given, or all.
pub(crate) fn done(
    device: &wgpu::Device,
    _queue: &wgpu::Queue,
    submission_index: Option<QueueSubmission>,
    patience: Duration,
) -> Result<(), wgpu::PollError> {
    device.poll(wgpu::PollType::Wait { submission_index, timeout: Some(patience) }).map(|_| ())
}

/// What the device says when it is done. If another thread waits for it at the same time, it may be the one that is about to answer.
pub(crate) fn heard<T>(answer: &mpsc::Receiver<T>) -> Option<T> {
    answer.recv_timeout(ANSWER).ok()
}
