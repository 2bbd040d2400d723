//! OpenAI's chat completions API.

mod request;
mod stream;
mod whole;

pub(crate) use request::{left_out, read_conversation, read_kwargs, read_switches, read_tool_choice};
pub(super) use whole::{FINGERPRINT, logprob, usage_of};

use crate::app::{ReceivedBody, RequestContext};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::stream::stream as streamed;
use axum::body::Body;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/chat/completions`.
pub(crate) async fn handle(asker: RequestContext, body: Body) -> Response {
    asker.answer(Dialect::OpenAi, body, answer).await
}

/// The number of tokens of a conversation, in the format of OpenAI's Responses API.
pub(super) fn input_tokens(tokens: usize) -> Value {
    json!({"object": "response.input_tokens", "input_tokens": tokens})
}

/// `POST /v1/chat/completions/input_tokens`.
pub(crate) async fn count_tokens(asker: RequestContext, body: Body) -> Response {
    let charge = Arc::clone(&asker.charge);
    let counted = asker.read(body, move |app, served, fields| {
        let conversation = read_conversation(fields, &app.config.limits)?;
        Ok(input_tokens(served.count_tokens(&conversation, &charge)?))
    });
    asker.reply_json(Dialect::OpenAi, counted.await)
}

async fn answer(asker: RequestContext, received: ReceivedBody) -> Result<Response, ApiError> {
    let charge = Arc::clone(&asker.charge);
    let (mut prepared, about) = asker
        .prepare(received, move |app, served, fields| {
            let request = request::read(fields, served, &app.config.limits)?;
            let (prepared, mut about) = request.prepare(served, &app.config.limits)?;
            if about.verbose {
                about.prompt = served.tokenizer.decode(&prepared.prompt.tokens, true);
                charge.grow(2 * about.prompt.len())?;
            }
            Ok((prepared, about))
        })
        .await?;
    // Timings count tokens, which texts do not tell.
    prepared.show_tokens |= about.stream_timings;
    let answer = asker.begin(prepared).await?;
    let served = Arc::clone(&answer.served);
    if about.stream {
        return Ok(streamed(answer, Box::new(stream::ChatStream::new(served, about))));
    }
    let outcomes = answer.collect().await?;
    Ok(whole::completion(&served, &about, outcomes).into_response())
}
