//! The page, its files, and what it shows of the model.

use crate::app::Asker;
use crate::dialect::{Dialect, json_response};
use crate::error::{ApiError, ErrorKind};
use axum::body::Body;
use axum::extract::Path;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::{Arc, PoisonError};

/// Name and content of every file of the page.
static ASSETS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// What the page may do: load its own files and ask its own server.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'";

pub(super) async fn index() -> Response {
    file("index.html").unwrap_or_else(|| not_found("index.html"))
}

pub(super) async fn asset(Path(name): Path<String>) -> Response {
    file(&name).unwrap_or_else(|| not_found(&name))
}

pub(super) async fn favicon() -> Response {
    file("icon.svg").unwrap_or_else(|| not_found("icon.svg"))
}

fn not_found(name: &str) -> Response {
    Dialect::OpenAi.error(&ApiError::new(ErrorKind::NotFound, format!("there is no file {name:?}")), "")
}

fn file(name: &str) -> Option<Response> {
    let (_, bytes) = ASSETS.iter().find(|(other, _)| *other == name)?;
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
    // another version of the program may be behind the same address tomorrow
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    Some(response)
}

/// The drawing, made once. It brings a policy of its own in the document.
pub(super) async fn graph(asker: Asker) -> Response {
    asker.reply(Dialect::OpenAi, drawing(&asker).await)
}

async fn drawing(asker: &Asker) -> Result<Response, ApiError> {
    let app = &asker.app;
    let drawn = app.drawn.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let page = match drawn {
        Some(page) => page,
        None => {
            let Some(draw) = app.extras.drawing.clone() else {
                return Err(ApiError::new(ErrorKind::NotFound, "this server draws no model"));
            };
            let page: Arc<str> = asker.blocking(move || draw().map_err(ApiError::internal)).await?.into();
            *app.drawn.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&page));
            page
        }
    };
    let mut response = Response::new(Body::from(page.as_bytes().to_vec()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("frame-ancestors 'self'"));
    Ok(response)
}

/// What the scheduler does, as docs/page.md defines it.
pub(super) async fn stats(asker: Asker) -> Response {
    let app = &asker.app;
    let stats = app.engineering.live.stats();
    let rates = app.engineering.live.rates();
    json_response(&json!({
        "running": stats.running,
        "waiting": stats.waiting,
        "slots": app.config.scheduler.max_running,
        "batch": stats.last_decoding + stats.last_prompt_tokens,
        "steps": stats.steps,
        "kv_blocks": {
            "total": stats.blocks,
            "used": stats.blocks_used,
            "cached": stats.blocks_cached,
            "tokens": stats.block_tokens,
        },
        "tokens_per_second": rates.completion,
        "prompt_tokens_per_second": rates.prompt,
    }))
}

/// What each phase of a step takes, as docs/page.md defines it.
pub(super) async fn profile(asker: Asker) -> Response {
    let profile = asker.app.engineering.watched.look();
    if profile.steps == 0 {
        return json_response(&json!({"phases": []}));
    }
    let per_step = |micros: f64| micros / profile.steps as f64;
    let step = per_step(profile.time.as_secs_f64() * 1e6);
    let phase = |time: &latent_engine::PhaseTime| {
        let micros = per_step(time.nanos as f64 / 1e3);
        json!({"name": time.name, "microseconds": micros, "share": micros / step.max(f64::MIN_POSITIVE)})
    };
    let phases: Vec<Value> = profile.phases.iter().map(phase).collect();
    let rows = per_step(profile.rows as f64);
    json_response(&json!({"phases": phases, "step_microseconds": step, "rows": rows}))
}
