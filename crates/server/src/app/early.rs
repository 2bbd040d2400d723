//! Streams that begin before their model is loaded, and send comments until then.
//!
//! Clients and proxies give up on a connection without a byte, but loading can take minutes.

use super::asker::{ReceivedBody, RequestContext};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::stream::event_stream;
use axum::body::{Body, BodyDataStream};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt, stream::poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// The future of a response.
type AnswerFuture = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

enum EarlyStage {
    Waiting(AnswerFuture),
    Streaming(BodyDataStream),
    Ended,
}

struct EarlyStream {
    asker: RequestContext,
    dialect: Dialect,
    stage: EarlyStage,
    ticks: Interval,
}

/// A stream that sends a comment every `pause` until the response exists, then its body. The status
/// 200 has been sent by then, so an error becomes an event.
fn begin_early(
    asker: RequestContext,
    dialect: Dialect,
    answering: AnswerFuture,
    pause: Duration,
) -> Response {
    // The first tick is immediate: the client has waited for `pause` already.
    let mut ticks = interval(pause);
    // By default (`Burst`), the ticks that were missed while the client did not read would all fire
    // at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let content_type = dialect.stream_type();
    let mut early = EarlyStream { asker, dialect, stage: EarlyStage::Waiting(answering), ticks };
    event_stream(Body::from_stream(poll_fn(move |context| early.poll(context))), content_type)
}

impl RequestContext {
    /// Answers a body with `work`. If the response is a stream and its model takes long to load,
    /// the stream begins before the model is loaded.
    pub(crate) async fn answer<F>(
        self,
        dialect: Dialect,
        body: Body,
        work: impl FnOnce(RequestContext, ReceivedBody) -> F,
    ) -> Response
    where
        F: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        let received = match self.receive(body).await {
            Ok(received) => received,
            Err(error) => return self.reply(dialect, Err(error)),
        };
        // For a loaded model the response waits: an error then has a status of its own.
        let waits = received.streams(dialect) && !self.app.models.is_loaded(received.model());
        let mut answering = Box::pin(work(self.clone(), received));
        if waits {
            let pause = Duration::from_secs(self.app.config.limits.loading_ping_seconds.max(1));
            // A load that fails quickly still gets its own status.
            match tokio::time::timeout(pause, &mut answering).await {
                Ok(result) => return self.reply(dialect, result),
                Err(_) => return begin_early(self, dialect, answering, pause),
            }
        }
        self.reply(dialect, answering.await)
    }
}

impl EarlyStream {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, axum::Error>>> {
        loop {
            match &mut self.stage {
                EarlyStage::Waiting(answering) => match answering.as_mut().poll(context) {
                    Poll::Ready(Ok(response)) => {
                        self.stage = EarlyStage::Streaming(response.into_body().into_data_stream());
                    }
                    Poll::Ready(Err(error)) => {
                        self.asker.note(&error);
                        // A future that has finished must not be polled again.
                        self.stage = EarlyStage::Ended;
                        let event = self.dialect.error_event(&error, &self.asker.id);
                        return Poll::Ready(Some(Ok(event.into())));
                    }
                    Poll::Pending if self.ticks.poll_tick(context).is_ready() => {
                        return Poll::Ready(Some(Ok(Bytes::from_static(self.dialect.loading().as_bytes()))));
                    }
                    Poll::Pending => return Poll::Pending,
                },
                EarlyStage::Streaming(body) => return body.poll_next_unpin(context),
                EarlyStage::Ended => return Poll::Ready(None),
            }
        }
    }
}
