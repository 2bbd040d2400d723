//! Anthropic's Messages API.

mod request;
mod stream;
mod whole;

use crate::app::{ReceivedBody, RequestContext};
use crate::dialect::{Dialect, json_response};
use crate::error::ApiError;
use crate::stream::stream as streamed;
use axum::body::Body;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;

/// `POST /v1/messages`.
pub(crate) async fn handle(asker: RequestContext, body: Body) -> Response {
    asker.answer(Dialect::Anthropic, body, answer).await
}

async fn answer(asker: RequestContext, received: ReceivedBody) -> Result<Response, ApiError> {
    let (prepared, about) = asker
        .prepare(received, |app, served, fields| {
            request::read(fields, served, &app.config.limits)?.prepare(served, &app.config.limits)
        })
        .await?;
    let answer = asker.begin(prepared).await?;
    if about.stream {
        return Ok(streamed(answer, Box::new(stream::MessageStream::new(about, asker.id.clone()))));
    }
    let outcome = answer.collect().await?.swap_remove(0);
    Ok(json_response(&whole::message(&about, &outcome)))
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(asker: RequestContext, body: Body) -> Response {
    let charge = Arc::clone(&asker.charge);
    let counted = asker.read(body, move |app, served, fields| {
        let conversation = request::read_conversation(fields, &app.config.limits)?;
        Ok(json!({"input_tokens": served.count_tokens(&conversation, &charge)?}))
    });
    asker.reply_json(Dialect::Anthropic, counted.await)
}
