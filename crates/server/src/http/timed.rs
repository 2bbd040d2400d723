//! A stream whose writes must make progress, so that a client that does not read cannot hold a
//! connection and its answer forever.

use crate::pace::ClientPace;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail with `TimedOut` if the client reads too slowly.
pub(crate) struct TimedStream<S> {
    stream: S,
    pace: ClientPace,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S> TimedStream<S> {
    pub(crate) fn new(stream: S, pace: ClientPace) -> TimedStream<S> {
        TimedStream { stream, pace, waiting: None }
    }

    /// Passes on the result of a write. A write that is pending for too long becomes an error.
    fn watch<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = &polled {
            let waited = self.waiting.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
            self.pace.progressed(result.as_ref().map_or(0, bytes), waited);
            return polled;
        }
        // One timer per wait: it is created when a write first returns `Pending`, and dropped with
        // the next progress.
        let left = self.pace.left();
        let (_, waiting) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        if waiting.deadline() < Instant::now() || waiting.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(polled, |bytes| *bytes, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(polled, |bytes| *bytes, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(polled, |()| 0, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(polled, |()| 0, context)
    }
}
