//! `/v1/stream`: resumable streams of named conversations, compatible with llama.cpp's server.

use crate::app::{App, MAX_CONVERSATION, RequestContext, parameter};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::keys::Tenant;
use crate::memory::RequestCharge;
use crate::stream::event_stream;
use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri};
use axum::response::Response;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::oneshot;
use tower_service::Service;

/// The header that llama.cpp's web page sends to name a conversation.
const HEADER: &str = "x-conversation-id";

/// The conversation that a request names. Its answer outlives the connection.
pub(super) fn conversation(method: &Method, headers: &HeaderMap) -> Option<String> {
    let name = headers.get(HEADER)?.to_str().ok()?.trim();
    // Only a POST has an answer to resume.
    let is_proper = *method == Method::POST && (1..=MAX_CONVERSATION).contains(&name.len());
    is_proper.then(|| name.to_owned())
}

/// Runs a request and stores its stream.
pub(super) async fn answer(
    app: &Arc<App>,
    tenant: Tenant,
    conversation: String,
    charge: Arc<RequestCharge>,
    mut router: Router,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let producer = Arc::new(app.streams.begin(tenant.key, conversation));
    let (sender, answered) = oneshot::channel();
    let writer = Arc::clone(&producer);
    // hyper drops the handler's future when the client disconnects. A task of its own continues.
    let running = tokio::spawn(async move {
        // Held until the answer is complete, which can be after the client has disconnected.
        let _charge = charge;
        let Ok(response) = router.call(request).await;
        if !is_stream(&response) {
            writer.forget();
            // The client may have disconnected.
            let _ = sender.send(response);
            return;
        }
        let (head, mut body) = response.into_parts();
        let _ = sender.send(Response::from_parts(head, writer.start()));
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(bytes) = frame.into_data() {
                writer.push(&bytes);
            }
        }
    });
    // Set after the spawn, which creates the handle. If the conversation was deleted in between,
    // `aborts` cancels the task immediately.
    producer.aborts(running.abort_handle());
    // The stream ends when the last handle is dropped, which must be the task's.
    drop(producer);
    answered.await.map_err(|_| ApiError::invalid("the request was cancelled: its conversation was stopped"))
}

fn is_stream(response: &Response) -> bool {
    response.headers().get(CONTENT_TYPE).is_some_and(|content| content == "text/event-stream")
}

fn conversation_of(uri: &Uri) -> Result<String, ApiError> {
    let name = parameter(uri, "conv_id").filter(|name| !name.is_empty());
    name.ok_or_else(|| ApiError::field("conv_id", "the address must name a conversation: ?conv_id=NAME"))
}

/// `GET /v1/stream?conv_id=NAME&from=BYTE`: resumes a stream.
pub(super) async fn read(asker: RequestContext, uri: Uri) -> Response {
    asker.reply(Dialect::LlamaCpp, reading(&asker, &uri))
}

fn reading(asker: &RequestContext, uri: &Uri) -> Result<Response, ApiError> {
    let name = conversation_of(uri)?;
    let from = match parameter(uri, "from") {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| ApiError::field("from", format!("expected a number of bytes, found {text:?}")))?,
    };
    let body = asker.app.streams.read(asker.tenant.key, &name, from)?;
    Ok(event_stream(body, "text/event-stream"))
}

/// `DELETE /v1/stream?conv_id=NAME`: cancels and removes a stream.
pub(super) async fn stop(asker: RequestContext, uri: Uri) -> Response {
    let stopped = conversation_of(&uri).map(|name| {
        asker.app.streams.remove(asker.tenant.key, &name);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    });
    asker.reply(Dialect::LlamaCpp, stopped)
}

/// `POST /v1/streams/lookup`: lists the streams of the named conversations.
pub(super) async fn lookup(asker: RequestContext, body: Body) -> Response {
    let limits = asker.app.config.limits.clone();
    let names = async {
        let received = asker.receive(body).await?;
        let read = move |fields: &crate::json::ObjectFields<'_>| {
            let list = fields.texts("conversation_ids")?.ok_or_else(|| fields.missing("conversation_ids"))?;
            limits.check("conversation_ids", "messages", list.len(), limits.messages)?;
            Ok(list.into_iter().map(str::to_owned).collect::<Vec<String>>())
        };
        asker.look(received, read).await.map(|(_, names)| names)
    };
    let found = names.await.map(|mut names| {
        names.retain(|name| !name.is_empty());
        let found = asker.app.streams.find(asker.tenant.key, &names);
        let entries = found.into_iter().map(|status| {
            json!({
                "conversation_id": status.name,
                "is_done": status.is_done,
                "total_bytes": status.total_bytes,
                "started_at": status.started,
                "completed_at": status.ended,
            })
        });
        entries.collect::<Value>()
    });
    asker.reply_json(Dialect::LlamaCpp, found)
}
