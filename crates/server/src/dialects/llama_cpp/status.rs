//! llama.cpp's `/health`, `/metrics` and `/props`.

use crate::app::RequestContext;
use crate::config::ServerConfig;
use crate::dialect::{Dialect, json_response};
use crate::model::ServedModel;
use crate::models::ModelStatus;
use crate::params::{AnswerParams, MAX_TOKENS};
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use latent_engine::sampling::{DEFAULT_BREAKERS, SamplerKind, SamplingField};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// `GET /health`.
pub(crate) async fn health(asker: RequestContext) -> Response {
    // Reads only shared state. A question to the engine's thread would wait for the end of a step,
    // and a long one would fail health checks.
    let models = &asker.app.models;
    let Err(error) = models.health() else { return json_response(&json!({"status": "ok"})) };
    // The fields of llama.cpp's error, and those of its older versions.
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
pub(crate) async fn metrics(asker: RequestContext) -> Response {
    let page = asker.app.metrics.page(&asker.app.models);
    let mut response = Response::new(Body::from(page));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response.headers_mut().insert("process-start-time-unix", HeaderValue::from(asker.app.models.created));
    response
}

/// The parameters of an answer under llama.cpp's names (`generation_settings`). `ends` are the
/// tokens that `ignore_eos` bans. Without `seed`, each request has a random one.
pub(super) fn settings(answer: &AnswerParams, ends: &[u32], seed: Option<u64>) -> Value {
    let params = &answer.sampling;
    // The shortest decimal that parses to the same f32: 0.7, not 0.699999988079071.
    let real = |value: f32| value.to_string().parse::<f64>().unwrap_or_default();
    let limit = answer.max_tokens.map_or_else(|| json!(-1), Value::from);
    // JSON has no −∞, so a banned token has null.
    let bias = |(token, bias): (u32, f32)| json!({"token": token, "bias": Some(real(bias)).filter(|_| bias.is_finite())});
    let biases: Vec<Value> = answer.all_biases(ends).into_iter().map(bias).collect();
    let breakers = params.dry_breakers.as_ref().map_or_else(|| json!(DEFAULT_BREAKERS), |own| json!(own));
    let mut value = json!({"seed": seed.map_or_else(|| json!(-1), Value::from)});
    for field in SamplingField::all() {
        value[field.name] = field.to_json(params);
    }
    value["dry_sequence_breakers"] = breakers;
    value["samplers"] = params.order().into_iter().map(SamplerKind::name).collect();
    let limits = json!({
        "stop": answer.stop,
        "max_tokens": limit,
        "n_predict": limit,
        "n_keep": if answer.shift.keep >= MAX_TOKENS { json!(-1) } else { answer.shift.keep.into() },
        "n_discard": answer.shift.discard,
        "n_indent": answer.min_indent,
        "min_tokens": answer.min_tokens,
        "t_max_predict_ms": milliseconds(answer.max_time),
        "t_max_prompt_ms": milliseconds(answer.max_prompt_time),
        "ignore_eos": answer.ignore_eos,
        "cache_prompt": !answer.uncached,
        "stream": false,
        "logit_bias": biases,
        "n_probs": answer.logprobs.unwrap_or(0),
        "post_sampling_probs": answer.post_sampling_probs,
        "timings_per_token": false,
        "grammar": answer.shape.grammar(),
        "grammar_lazy": false,
        "grammar_triggers": [],
        "preserved_tokens": [],
        // Constants for clients that expect all fields of llama.cpp.
        "chat_format": "Content-only",
        "reasoning_format": "deepseek",
        "reasoning_in_content": false,
        "generation_prompt": "",
        "backend_sampling": false,
        "lora": scales(answer),
    });
    if let (Some(all), Value::Object(more)) = (value.as_object_mut(), limits) {
        all.extend(more);
    }
    value
}

/// The adapter scales that a request has set.
fn scales(answer: &AnswerParams) -> Value {
    let scales = answer.adapter_scales.as_ref().map_or(&[][..], |scales| scales.as_slice());
    scales.iter().enumerate().map(|(id, scale)| json!({"id": id, "scale": scale})).collect()
}

/// A time limit in milliseconds, or −1.
fn milliseconds(limit: Option<Duration>) -> Value {
    limit.map_or_else(|| json!(-1), |limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).into())
}

fn token_text(served: &ServedModel, id: Option<u32>) -> &str {
    id.and_then(|id| served.tokenizer.token_text(id)).unwrap_or_default()
}

/// In the form of llama.cpp's build numbers (`b1234-commit`).
const BUILD: &str = concat!("b", env!("CARGO_PKG_VERSION"), "-latent");

/// `GET /props`. It does not load a model: monitors poll it.
pub(crate) async fn props(asker: RequestContext) -> Response {
    let app = Arc::clone(&asker.app);
    if !app.models.is_single() && asker.model.is_none() {
        return asker.reply_json(Dialect::LlamaCpp, app.models.open().map(|()| of_all_models(&app.config)));
    }
    let model = asker.model();
    // On a blocking thread: the first call renders the chat template many times for its
    // capabilities.
    let value = asker.blocking(move || model.map(|model| properties(&model, &app.config))).await;
    asker.reply_json(Dialect::LlamaCpp, value)
}

/// `/props` of llama.cpp's router, for requests that do not name a model.
fn of_all_models(config: &ServerConfig) -> Value {
    json!({
        "role": "router",
        "max_instances": config.models_max,
        "models_autoload": config.autoload,
        "model_alias": "latent",
        "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "total_slots": config.scheduler.max_running,
        "build_info": BUILD,
        "cors_proxy_enabled": false,
    })
}

fn properties(model: &ModelStatus, config: &ServerConfig) -> Value {
    let served = model.served.as_deref();
    let stats = model.worker_handle.as_ref().map(|worker| worker.live.stats());
    let stats = stats.filter(|stats| stats.states > 0);
    json!({
        "default_generation_settings": {
            "id": 0,
            "n_ctx": served.map_or(0, |served| served.context),
            "params": served.map(default_settings),
        },
        "total_slots": config.scheduler.max_running,
        "model_alias": model.name,
        "model_path": served.map_or(&model.path, |served| &served.about.path),
        "model_ftype": served.and_then(|served| served.about.quantization.as_deref()),
        "modalities": {"vision": false, "video": false, "audio": false},
        "endpoint_slots": config.slots,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "ui": config.page,
        "chat_template": served.and_then(|served| served.about.chat_template.as_deref()),
        "chat_template_caps": served.map(ServedModel::template_caps),
        "bos_token": served.map_or("", |served| token_text(served, served.tokenizer.bos())),
        "eos_token": served.map_or("", |served| token_text(served, served.tokenizer.eos())),
        "cache_bytes_per_token": served.map(|served| served.token_bytes),
        "state_bytes_per_sequence": served.map(|served| served.state_bytes),
        "state_cache": stats.map(|stats| json!({
            "bytes": stats.states.saturating_mul(stats.state_bytes),
            "slots": stats.states,
            "free": stats.states_free,
        })),
        "build_info": BUILD,
        "is_sleeping": served.is_none(),
        "cors_proxy_enabled": false,
    })
}

/// The parameters of a request without any.
fn default_settings(served: &ServedModel) -> Value {
    let defaults = &served.about.defaults;
    let params = AnswerParams { logprobs: defaults.logprobs, ..AnswerParams::new(&served.about) };
    // Not the seed in `params`, which is drawn at random for each request.
    settings(&params, served.tokenizer.end_of_generation(), defaults.seed)
}
