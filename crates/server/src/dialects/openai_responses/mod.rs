//! OpenAI's Responses API.

mod item_values;
mod request;
mod stream;
mod whole;

use crate::app::{App, ReceivedBody, RequestContext, RouteName};
use crate::dialect::{Dialect, json_text};
use crate::dialects::openai_chat::input_tokens;
use crate::document::Document;
use crate::error::{ApiError, ErrorKind};
use crate::items::ConversationItem;
use crate::store::StoredResponse;
use crate::stream::stream as streamed;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use latent_engine::scheduler::FairnessKey;
use serde_json::json;
use std::sync::{Arc, PoisonError};
use whole::ResponseWriter;

/// `POST /v1/responses`.
pub(crate) async fn handle(asker: RequestContext, body: Body) -> Response {
    asker.answer(Dialect::Responses, body, answer).await
}

/// The items of a response that this tenant has stored.
fn earlier(app: &App, owner: FairnessKey, id: &str) -> Option<Vec<ConversationItem>> {
    let store = app.store.lock().unwrap_or_else(PoisonError::into_inner);
    store.get(owner, id).map(|stored| stored.items.to_vec())
}

/// `POST /v1/responses/input_tokens`.
pub(crate) async fn count_tokens(asker: RequestContext, body: Body) -> Response {
    let (owner, charge) = (asker.tenant.key, Arc::clone(&asker.charge));
    let counted = asker.read(body, move |app, served, fields| {
        let conversation =
            request::read_conversation(fields, &app.config.limits, &|id| earlier(app, owner, id))?;
        Ok(input_tokens(served.count_tokens(&conversation, &charge)?))
    });
    asker.reply_json(Dialect::Responses, counted.await)
}

async fn answer(asker: RequestContext, received: ReceivedBody) -> Result<Response, ApiError> {
    let owner = asker.tenant.key;
    let (prepared, about) = asker
        .prepare(received, move |app, served, fields| {
            let earlier = |id: &str| earlier(app, owner, id);
            // Only a response that will be stored needs a copy of the conversation.
            let mut request = request::read(fields, served, &app.config.limits, &earlier)?;
            if request.about.store {
                request.about.items.clone_from(&request.conversation.items);
            }
            request.prepare(served, &app.config.limits)
        })
        .await?;
    let answer = asker.begin(prepared).await?;
    let mut written = ResponseWriter::new(Arc::clone(&answer.served), about, owner);
    if written.about.stream {
        return Ok(streamed(answer, Box::new(stream::ResponseStream::new(Arc::clone(&asker.app), written))));
    }
    let outcome = answer.collect().await?.swap_remove(0);
    written.add_outcome(&outcome);
    let text = Bytes::from(written.text(Some(&outcome.finish), None));
    written.keep(&asker.app, &text);
    Ok(json_text(text))
}

fn unknown(id: &str) -> ApiError {
    ApiError::new(
        ErrorKind::NotFound,
        format!("no stored response {id:?}: it was not stored, or was dropped"),
    )
}

/// Responds with the result of `of` for a response that this tenant has stored.
fn stored(asker: &RequestContext, id: &str, of: impl FnOnce(&StoredResponse) -> Response) -> Response {
    let store = asker.app.store.lock().unwrap_or_else(PoisonError::into_inner);
    let found = store.get(asker.tenant.key, id).ok_or_else(|| unknown(id));
    // Charged to the request: a slow reader holds it even after the store has evicted it.
    let charged = found.and_then(|stored| asker.charge.grow(stored.bytes).map(|()| of(stored)));
    asker.reply(Dialect::Responses, charged)
}

/// `GET /v1/responses/ID`.
pub(crate) async fn retrieve(asker: RequestContext, RouteName(id): RouteName) -> Response {
    stored(&asker, &id, |stored| json_text(stored.text.clone()))
}

/// `DELETE /v1/responses/ID`.
pub(crate) async fn remove(asker: RequestContext, RouteName(id): RouteName) -> Response {
    let removed =
        asker.app.store.lock().unwrap_or_else(PoisonError::into_inner).remove(asker.tenant.key, &id);
    let value = json!({"id": id, "object": "response", "deleted": true});
    asker.reply_json(Dialect::Responses, if removed { Ok(value) } else { Err(unknown(&id)) })
}

/// `GET /v1/responses/ID/input_items`.
pub(crate) async fn input_items(asker: RequestContext, RouteName(id): RouteName) -> Response {
    stored(&asker, &id, |stored| {
        // Newest first, as is the default order of OpenAI's API.
        let (items, input) = (Arc::clone(&stored.items), stored.input);
        let ids: Vec<String> = items[..input].iter().rev().map(item_values::input_id).collect();
        let value = json!({
            "object": "list", "has_more": false, "first_id": ids.first(), "last_id": ids.last(),
        });
        let item = move |(at, id): (usize, String), out: &mut Vec<u8>| {
            out.extend_from_slice(item_values::input_item(&id, &items[input - 1 - at]).as_bytes());
        };
        Document::open(&value).field("data").list(ids.into_iter().enumerate(), item).close().into_response()
    })
}

/// `POST /v1/responses/ID/cancel`.
pub(crate) async fn cancel(asker: RequestContext) -> Response {
    let problem = "only background responses can be cancelled, which are not supported: close the connection \
                   to cancel an answer";
    asker.reply(Dialect::Responses, Err(ApiError::invalid(problem)))
}
