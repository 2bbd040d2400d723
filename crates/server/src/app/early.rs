//! A stream that begins before its model is loaded: comments, until the answer is there.

use super::asker::{Asker, Received};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::stream::event_stream;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// An answer in the making.
type Answering = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// What a client hears meanwhile. Server-sent events have comments; no client shows them.
const COMMENT: &str = ": loading\n\n";

enum Stage {
    Waiting(Answering),
    Streaming(Body),
    Ended,
}

struct Early {
    asker: Asker,
    dialect: Dialect,
    stage: Stage,
    ticks: Interval,
}

/// A stream that says every `pause` that it lives, then whatever is answered. Its status is sent, so that an error is an event in it.
fn begin_early(asker: Asker, dialect: Dialect, answering: Answering, pause: Duration) -> Response {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    event_stream(
        Body::new(Early { asker, dialect, stage: Stage::Waiting(answering), ticks }),
        "text/event-stream",
    )
}

impl Asker {
    /// Answers a body by `work`. A stream whose model takes long to load begins before it is there, so that neither the client nor a proxy
    /// gives up.
    pub(crate) async fn answer<F>(
        self,
        dialect: Dialect,
        body: Body,
        work: impl FnOnce(Asker, Received) -> F,
    ) -> Response
    where
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let received = match self.receive(body).await {
            Ok(received) => received,
            Err(error) => return self.reply(dialect, Err(error)),
        };
        let waits = received.streams() && !self.app.models.is_loaded(received.model());
        let mut answering = Box::pin(work(self.clone(), received));
        if waits {
            let pause = Duration::from_secs(self.app.config.limits.loading_ping_seconds.max(1));
            match tokio::time::timeout(pause, &mut answering).await {
                Ok(result) => return self.reply(dialect, result),
                Err(_) => return begin_early(self, dialect, answering, pause),
            }
        }
        self.reply(dialect, answering.await)
    }
}

impl http_body::Body for Early {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        loop {
            match &mut this.stage {
                Stage::Waiting(answering) => match answering.as_mut().poll(context) {
                    Poll::Ready(Ok(response)) => this.stage = Stage::Streaming(response.into_body()),
                    Poll::Ready(Err(error)) => {
                        this.asker.note(&error);
                        this.stage = Stage::Ended;
                        let event = this.dialect.error_event(&error, &this.asker.id);
                        return Poll::Ready(Some(Ok(Frame::data(event.into()))));
                    }
                    Poll::Pending if this.ticks.poll_tick(context).is_ready() => {
                        return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(COMMENT.as_bytes())))));
                    }
                    Poll::Pending => return Poll::Pending,
                },
                Stage::Streaming(body) => return Pin::new(body).poll_frame(context),
                Stage::Ended => return Poll::Ready(None),
            }
        }
    }
}
