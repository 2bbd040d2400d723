//! What the server runs and does.

use crate::app::Asker;
use crate::dialect::{Dialect, json_response};
use crate::model::Served;
use crate::models::Status;
use crate::params::Params;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

/// `GET /health`: answered by the HTTP thread alone, whatever the engine does.
pub(crate) async fn health(asker: Asker) -> Response {
    let models = &asker.app.models;
    let Err(error) = models.health() else { return json_response(&json!({"status": "ok"})) };
    let mut value = Dialect::LlamaCpp.error_value(&error, "");
    if let Some((done, total)) = models.progress() {
        value["status"] = "loading model".into();
        value["progress"] = if total > 0 { (done as f64 / total as f64).into() } else { 0.0.into() };
    }
    let mut response = json_response(&value);
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// `GET /metrics`.
pub(crate) async fn metrics(asker: Asker) -> Response {
    let page = asker.app.metrics.page(&asker.app.models);
    let mut response = Response::new(Body::from(page));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response.headers_mut().insert("process-start-time-unix", HeaderValue::from(asker.app.models.created));
    response
}

/// Settings of an answer under llama.cpp's names. Without a seed each request draws one.
pub(super) fn settings(answer: &Params, seed: Option<u64>) -> Value {
    let params = &answer.sampling;
    // the shortest decimal that parses to the same f32
    let real = |value: f32| value.to_string().parse::<f64>().unwrap_or_default();
    json!({
        "n_predict": answer.max_tokens.map_or_else(|| json!(-1), Value::from),
        "seed": seed.map_or_else(|| json!(-1), Value::from),
        "stop": answer.stop,
        "n_probs": answer.logprobs.unwrap_or(0),
        "temperature": real(params.temperature),
        "top_k": params.top_k,
        "top_p": real(params.top_p),
        "min_p": real(params.min_p),
        "typical_p": real(params.typical),
        "repeat_last_n": params.penalty_last,
        "repeat_penalty": real(params.repeat_penalty),
        "presence_penalty": real(params.presence_penalty),
        "frequency_penalty": real(params.frequency_penalty),
        "dry_multiplier": real(params.dry_multiplier),
        "dry_base": real(params.dry_base),
        "dry_allowed_length": params.dry_allowed,
        "dry_penalty_last_n": params.dry_last,
        "xtc_probability": real(params.xtc_probability),
        "xtc_threshold": real(params.xtc_threshold),
        "samplers": ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    })
}

fn token_text(served: &Served, id: Option<u32>) -> &str {
    id.and_then(|id| served.tokenizer.token_text(id)).unwrap_or_default()
}

/// `GET /props`. A model that is not loaded is not loaded for it.
pub(crate) async fn props(asker: Asker) -> Response {
    let slots = asker.app.config.scheduler.max_running;
    asker.reply_json(Dialect::LlamaCpp, asker.model().map(|model| properties(&model, slots)))
}

fn properties(model: &Status, slots: usize) -> Value {
    let served = model.served.as_deref();
    json!({
        "default_generation_settings": {
            "id": 0,
            "n_ctx": served.map_or(0, |served| served.context),
            "params": served.map(default_settings),
        },
        "total_slots": slots,
        "model_alias": model.name,
        "model_path": served.map_or(&model.path, |served| &served.about.path),
        "modalities": {"vision": false, "audio": false},
        "chat_template": served.and_then(|served| served.about.chat_template.as_deref()),
        "bos_token": served.map_or("", |served| token_text(served, served.tokenizer.bos())),
        "eos_token": served.map_or("", |served| token_text(served, served.tokenizer.eos())),
        "build_info": concat!("latent ", env!("CARGO_PKG_VERSION")),
        "is_sleeping": served.is_none(),
    })
}

/// Settings of a request that says nothing.
fn default_settings(served: &Served) -> Value {
    let defaults = &served.about.defaults;
    settings(&Params { logprobs: defaults.logprobs, ..Params::new(&served.about) }, defaults.seed)
}

/// `GET /slots`: how many are busy. What they answer stays between them and their clients.
pub(crate) async fn slots(asker: Asker) -> Response {
    let value = asker.model().map(|model| {
        let context = model.served.as_ref().map_or(0, |served| served.context);
        let running = model.engineering.map_or(0, |engineering| engineering.live.stats().running);
        let slot = |id: usize| json!({"id": id, "n_ctx": context, "speculative": false, "is_processing": id < running});
        (0..asker.app.config.scheduler.max_running).map(slot).collect()
    });
    asker.reply_json(Dialect::LlamaCpp, value)
}
