//! Streaming response bodies: server-sent events and JSON lines.

use crate::answer::{AnswerUpdate, RequestAnswers};
use crate::error::{ApiError, ErrorKind};
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Encodes updates of answers in the stream format of an API.
pub(crate) trait Encoder: Send {
    /// Writes the beginning of the stream.
    fn begin(&mut self, _out: &mut String) {}
    /// Writes an update.
    fn update(&mut self, update: AnswerUpdate, out: &mut String);
    /// Writes an error, which is the last event.
    fn error(&mut self, error: &ApiError, out: &mut String);
    /// Writes the end of the stream, if no error occurred.
    fn end(&mut self, out: &mut String);
    /// Writes a keep-alive event.
    fn ping(&mut self, out: &mut String);
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }
}

/// Interval of keep-alive events in a silent stream.
const PING: Duration = Duration::from_secs(10);

/// Bytes after which a frame is sent even if more updates are ready.
const FRAME: usize = 16_384;

struct AnswerStream {
    /// The index of the first choice of each request, and its answers.
    answers: Vec<(usize, RequestAnswers)>,
    encoder: Box<dyn Encoder>,
    ping: Interval,
    begun: bool,
    ended: bool,
}

pub(crate) fn stream(answer: RequestAnswers, encoder: Box<dyn Encoder>) -> Response {
    stream_all(vec![answer], encoder)
}

/// A response that streams the answers to several prompts. Choices are numbered consecutively.
pub(crate) fn stream_all(answers: Vec<RequestAnswers>, encoder: Box<dyn Encoder>) -> Response {
    let mut first = 0;
    let numbered = |answer: RequestAnswers| {
        let numbered = (first, answer);
        first += numbered.1.choices();
        numbered
    };
    let answers = answers.into_iter().map(numbered).collect();
    let content_type = encoder.content_type();
    let mut ping = interval_at(Instant::now() + PING, PING);
    // After a pause of a slow reader, one ping is enough.
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let body = AnswerStream { answers, encoder, ping, begun: false, ended: false };
    event_stream(Body::new(body), content_type)
}

/// A streaming response.
pub(crate) fn event_stream(body: Body, content_type: &'static str) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Without it nginx buffers the response.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl AnswerStream {
    /// Encodes all updates that are ready, up to a frame.
    fn write(&mut self, context: &mut Context<'_>, out: &mut String) {
        if !self.begun {
            self.begun = true;
            self.encoder.begin(out);
        }
        let mut waiting = false;
        for (first, answer) in &mut self.answers {
            // Until it is pending: only then has it registered the task's waker.
            while !self.ended && out.len() < FRAME {
                match answer.poll(context) {
                    Poll::Pending => {
                        waiting = true;
                        break;
                    }
                    Poll::Ready(None) => break,
                    Poll::Ready(Some(Ok(update))) => {
                        let choice = *first + update.choice;
                        self.encoder.update(AnswerUpdate { choice, ..update }, out);
                    }
                    Poll::Ready(Some(Err(error))) => {
                        tracing::warn!("a stream ends with an error: {error}");
                        self.encoder.error(&error, out);
                        self.ended = true;
                    }
                }
            }
        }
        // With a full frame, some answers may not have been polled to their end.
        if !self.ended && !waiting && out.len() < FRAME {
            self.encoder.end(out);
            self.ended = true;
        }
    }
}

impl http_body::Body for AnswerStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.ended {
            // After an error, other answers may still run. Dropping them cancels their jobs.
            this.answers.clear();
            return Poll::Ready(None);
        }
        let mut out = String::new();
        // After a panic of an encoder, the client gets an error event and not a broken connection.
        if catch_unwind(AssertUnwindSafe(|| this.write(context, &mut out))).is_err() {
            this.ended = true;
            let error = ApiError::new(ErrorKind::Internal, "the server failed on this answer");
            this.encoder.error(&error, &mut out);
        }
        // The answers have registered their wakers in `write`; the timer registers its own here.
        if out.is_empty() && !this.ended {
            match this.ping.poll_tick(context) {
                Poll::Ready(_) => this.encoder.ping(&mut out),
                Poll::Pending => return Poll::Pending,
            }
            if out.is_empty() {
                // An encoder without pings: poll again, so that the next tick wakes the task.
                let _ = this.ping.poll_tick(context);
                return Poll::Pending;
            }
        } else {
            this.ping.reset();
        }
        if out.is_empty() { Poll::Ready(None) } else { Poll::Ready(Some(Ok(Frame::data(out.into())))) }
    }
}
