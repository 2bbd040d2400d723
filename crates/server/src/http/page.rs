//! The chat page, its files, and the endpoints for its displays of the model.

use crate::app::{RequestContext, RouteName};
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use crate::models::ModelStatus;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;

/// Name and content of every file of the page.
static ASSETS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The page may load only its own files and send requests only to its own server. Model output
/// that escapes the page's Markdown view cannot load anything from elsewhere.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'";

pub(super) async fn index() -> Response {
    file("index.html").unwrap_or_else(|| not_found("index.html"))
}

pub(super) async fn asset(RouteName(name): RouteName) -> Response {
    file(&name).unwrap_or_else(|| not_found(&name))
}

pub(super) async fn favicon() -> Response {
    file("icon.svg").unwrap_or_else(|| not_found("icon.svg"))
}

fn not_found(name: &str) -> Response {
    Dialect::OpenAi.error(&ApiError::new(ErrorKind::NotFound, format!("unknown file {name:?}")), "")
}

fn file(name: &str) -> Option<Response> {
    let (_, bytes) = ASSETS.iter().find(|(other, _)| *other == name)?;
    // Every response has `nosniff`, with which browsers refuse scripts and styles of another type.
    let content_type = match name.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml; charset=utf-8",
        "json" | "webmanifest" => "application/json",
        _ => "application/octet-stream",
    };
    let mut response = Response::new(Body::from(*bytes));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // The files have no version in their names. After an update of the program a cached script
    // must not run with a new page.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    Some(response)
}

/// `GET /latent/graph`. The document contains a content security policy of its own.
pub(super) async fn graph(asker: RequestContext) -> Response {
    asker.reply(Dialect::OpenAi, drawing(&asker).await)
}

async fn drawing(asker: &RequestContext) -> Result<Response, ApiError> {
    let models = &asker.app.models;
    let index = models.find(asker.model.as_deref())?;
    let page = match models.drawing(index) {
        (_, Some(page)) => page,
        (Some(draw), None) => {
            // Drawing is slow, and this thread serves all connections.
            let page: Arc<str> = asker.blocking(move || draw().map_err(ApiError::internal)).await?.into();
            models.keep_drawing(index, &page);
            page
        }
        (None, None) => return Err(ApiError::new(ErrorKind::NotFound, "this server does not draw models")),
    };
    // The body shares the cached page. A copy per slow reader would not be charged to any budget.
    let mut response = Response::new(Body::from(Bytes::from_owner(Arc::<[u8]>::from(page))));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    // The page shows the drawing in an iframe.
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("frame-ancestors 'self'"));
    Ok(response)
}

/// The model in `?model=`, or the one that was used last.
fn watched(asker: &RequestContext) -> Result<ModelStatus, ApiError> {
    let models = &asker.app.models;
    let index = match &asker.model {
        Some(name) => models.find(Some(name))?,
        None => models.latest()?,
    };
    Ok(models.status(index))
}

/// `GET /latent/stats`: figures of the scheduler, specified in docs/page.md.
pub(super) async fn stats(asker: RequestContext) -> Response {
    let slots = asker.app.config.scheduler.max_running;
    asker.reply_json(Dialect::OpenAi, watched(&asker).map(|model| figures(&model, slots)))
}

fn figures(model: &ModelStatus, slots: usize) -> Value {
    let live = model.worker_handle.as_ref().map(|worker_handle| &worker_handle.live);
    let (stats, rates) = live.map(|live| (live.stats(), live.rates())).unwrap_or_default();
    json!({
        "running": stats.running,
        "waiting": stats.waiting,
        "slots": slots,
        "batch": stats.last_decoding + stats.last_prompt_tokens,
        "steps": stats.steps,
        "kv_blocks": {
            "total": stats.blocks,
            "used": stats.blocks_used,
            "cached": stats.blocks_cached,
            "tokens": stats.block_tokens,
        },
        "states": {"total": stats.states, "free": stats.states_free, "bytes": stats.state_bytes},
        "tokens_per_second": rates.completion,
        "prompt_tokens_per_second": rates.prompt,
    })
}

/// `GET /latent/profile`: mean time of each phase of a step, specified in docs/page.md.
pub(super) async fn profile(asker: RequestContext) -> Response {
    asker.reply_json(Dialect::OpenAi, watched(&asker).map(|model| phases(&model)))
}

fn phases(model: &ModelStatus) -> Value {
    let profile = model.worker_handle.as_ref().map(|worker_handle| worker_handle.watched.look());
    let Some(profile) = profile.filter(|profile| profile.steps > 0) else { return json!({"phases": []}) };
    let per_step = |micros: f64| micros / profile.steps as f64;
    let step = per_step(profile.time.as_secs_f64() * 1e6);
    let phase = |time: &latent_engine::PhaseTime| {
        let micros = per_step(time.nanos as f64 / 1e3);
        json!({"name": time.name, "microseconds": micros, "share": micros / step.max(f64::MIN_POSITIVE)})
    };
    let phases: Vec<Value> = profile.phases.iter().map(phase).collect();
    let rows = per_step(profile.rows as f64);
    json!({"phases": phases, "step_microseconds": step, "rows": rows})
}
