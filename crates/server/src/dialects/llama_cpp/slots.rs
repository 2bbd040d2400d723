//! llama.cpp's `GET /slots`, and `POST /slots/{id}`, which saves and restores the cached rows of a
//! slot.

use super::status::settings;
use crate::app::{RequestContext, RouteName, parameter};
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use crate::models::Lease;
use crate::worker::{NoText, SlotTask, SlotText};
use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use latent_engine::EngineError;
use latent_engine::cache::CacheFileError;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// `GET /slots`: the running requests, without their texts.
pub(crate) async fn slots(asker: RequestContext, uri: Uri) -> Response {
    asker.reply_json(Dialect::LlamaCpp, slot_list(&asker, &uri))
}

fn slot_list(asker: &RequestContext, uri: &Uri) -> Result<Value, ApiError> {
    if !asker.app.config.slots {
        let problem = "this server does not show its slots: start it without --no-slots";
        return Err(ApiError::new(ErrorKind::NotImplemented, problem));
    }
    let model = asker.model()?;
    let tasks =
        model.worker_handle.as_ref().map(|worker_handle| worker_handle.slots.list()).unwrap_or_default();
    let count = asker.app.config.scheduler.max_running;
    // Load balancers of llama.cpp's servers use this parameter as a readiness check.
    let wanted = parameter(uri, "fail_on_no_slot").is_some_and(|value| !value.is_empty());
    let running = tasks.iter().flatten().filter(|task| task.is_running).count();
    if wanted && running >= count {
        return Err(ApiError::new(ErrorKind::Unavailable, "no slot available").retry(Duration::from_secs(1)));
    }
    let context = model.served.as_ref().map_or(0, |served| served.context);
    Ok((0..count).map(|id| slot(id, context, tasks.get(id).and_then(Option::as_ref))).collect())
}

/// Settings that contain texts of a request.
const PRIVATE: [&str; 4] = ["stop", "grammar", "logit_bias", "dry_sequence_breakers"];

/// A slot. An idle slot shows the settings of its last request, but no progress.
fn slot(id: usize, context: usize, task: Option<&SlotTask>) -> Value {
    let running = task.filter(|task| task.is_running);
    let mut value =
        json!({"id": id, "n_ctx": context, "speculative": false, "is_processing": running.is_some()});
    if let Some(task) = task {
        let remain = running.and_then(|task| Some(task.params.max_tokens?.saturating_sub(task.decoded)));
        value["id_task"] = task.id.into();
        value["n_prompt_tokens"] = task.prompt.into();
        value["n_prompt_tokens_processed"] = running.map_or(0, |task| task.processed).into();
        value["n_prompt_tokens_cache"] = running.map_or(0, |task| task.cached).into();
        let mut params = settings(&task.params, &[], Some(task.params.sampling.seed));
        // Any client can poll /slots, with or without the key of the request.
        if let Some(params) = params.as_object_mut() {
            params.retain(|name, _| !PRIVATE.contains(&name.as_str()));
        }
        value["params"] = params;
        value["next_token"] = json!([{
            "has_next_token": running.is_some(),
            "has_new_line": running.is_some_and(|task| task.has_new_line),
            "n_remain": remain.map_or_else(|| json!(-1), Value::from),
            "n_decoded": running.map_or(0, |task| task.decoded),
        }]);
    }
    value
}

/// Maximum length of a file name in bytes, as on most file systems.
const MAX_NAME: usize = 255;

/// `POST /slots/{id}?action=save|restore|erase`.
pub(crate) async fn slot_action(
    asker: RequestContext,
    RouteName(id): RouteName,
    uri: Uri,
    body: Body,
) -> Response {
    let result = act(&asker, &id, &uri, body).await;
    asker.reply_json(Dialect::LlamaCpp, result)
}

async fn act(asker: &RequestContext, id: &str, uri: &Uri, body: Body) -> Result<Value, ApiError> {
    let config = &asker.app.config;
    let Some(folder) = config.slot_save_path.clone() else {
        let problem = "this server cannot save slots: start it with --slot-save-path FOLDER, or keep cached \
                       prompts across restarts with --cache-disk FOLDER";
        return Err(ApiError::new(ErrorKind::NotImplemented, problem));
    };
    let count = config.scheduler.max_running;
    let slot = id.parse().ok().filter(|slot| *slot < count).ok_or_else(|| {
        ApiError::invalid(format!("slot {id:?}: expected a number from 0 to {}", count.saturating_sub(1)))
    })?;
    match parameter(uri, "action").as_deref() {
        Some("save") => {
            let (model, name) = file_name(asker, body).await?;
            save(asker, &model, slot, &name, folder.join(&name)).await
        }
        Some("restore") => {
            let (model, name) = file_name(asker, body).await?;
            restore(asker, &model, slot, &name, folder.join(&name)).await
        }
        Some("erase") => erase(asker, slot).await,
        _ => Err(ApiError::invalid("expected ?action=save, ?action=restore or ?action=erase")),
    }
}

/// Parses `filename`, which must be in the folder itself.
async fn file_name(asker: &RequestContext, body: Body) -> Result<(Arc<Lease>, String), ApiError> {
    let read = asker.read(body, |_, model, fields| {
        let name = fields.str("filename")?.ok_or_else(|| fields.missing("filename"))?;
        // Also excludes what Windows treats specially: drives, streams, and trailing dots and
        // blanks.
        let plain = |c: char| !c.is_control() && !"/\\:*?\"<>|".contains(c);
        let dots = name.starts_with('.') || name.ends_with(['.', ' ']);
        if name.is_empty() || name.len() > MAX_NAME || dots || !name.chars().all(plain) {
            let problem = "expected the name of a file, without folders, such as slot0.bin";
            return Err(fields.error("filename", problem));
        }
        Ok((Arc::clone(model), name.to_owned()))
    });
    read.await
}

async fn save(
    asker: &RequestContext,
    model: &Lease,
    slot: usize,
    name: &str,
    path: PathBuf,
) -> Result<Value, ApiError> {
    let text = text(asker, &model.worker_handle().slots, slot)?;
    let (start, target) = (Instant::now(), path.clone());
    // Between two steps, since the rows must not be evicted while they are written.
    let saved = model.worker_handle().with_scheduler(move |scheduler| {
        let SlotText { salt, tokens } = text;
        scheduler.save_prefix(salt, &tokens, &target)
    });
    let saved = saved.await?.map_err(|error| failed(&error, name, &path))?;
    if saved == 0 {
        return Err(ApiError::invalid(format!(
            "slot {slot}: its last request is no longer cached; send the request again before saving"
        )));
    }
    Ok(json!({
        "id_slot": slot, "filename": name, "n_saved": saved, "n_written": bytes(&path),
        "timings": {"save_ms": milliseconds(start)},
    }))
}

async fn restore(
    asker: &RequestContext,
    model: &Lease,
    slot: usize,
    name: &str,
    path: PathBuf,
) -> Result<Value, ApiError> {
    let (slots, salt) = (&model.worker_handle().slots, asker.tenant.salt);
    if slots.text(slot, salt) == Err(NoText::Busy) {
        return Err(busy(slot));
    }
    let (start, source) = (Instant::now(), path.clone());
    let restored =
        model.worker_handle().with_scheduler(move |scheduler| scheduler.restore_prefix(salt, &source));
    let tokens = restored.await?.map_err(|error| failed(&error, name, &path))?;
    let count = tokens.len();
    // The rows are in the shared prefix cache. The slot gets the tokens, so that it can be saved
    // again.
    slots.set_text(slot, Some(SlotText { salt, tokens }));
    Ok(json!({
        "id_slot": slot, "filename": name, "n_restored": count, "n_read": bytes(&path),
        "timings": {"restore_ms": milliseconds(start)},
    }))
}

async fn erase(asker: &RequestContext, slot: usize) -> Result<Value, ApiError> {
    let model = asker.model()?;
    let Some(worker_handle) = model.worker_handle else {
        // The slots of a model that is not loaded are empty.
        return Ok(json!({"id_slot": slot, "n_erased": 0}));
    };
    let erased = match worker_handle.slots.text(slot, asker.tenant.salt) {
        Err(NoText::Empty) => 0,
        Err(NoText::Busy) => return Err(busy(slot)),
        Err(NoText::Foreign) => return Err(foreign(slot)),
        Ok(SlotText { salt, tokens }) => {
            worker_handle.with_scheduler(move |scheduler| scheduler.forget_prefix(salt, &tokens)).await?
        }
    };
    worker_handle.slots.set_text(slot, None);
    Ok(json!({"id_slot": slot, "n_erased": erased}))
}

/// The text of a slot, or the error for this client.
fn text(asker: &RequestContext, slots: &crate::worker::Slots, slot: usize) -> Result<SlotText, ApiError> {
    slots.text(slot, asker.tenant.salt).map_err(|problem| match problem {
        NoText::Busy => busy(slot),
        NoText::Foreign => foreign(slot),
        NoText::Empty => {
            ApiError::invalid(format!("slot {slot} is empty: send a request with \"id_slot\": {slot} first"))
        }
    })
}

fn busy(slot: usize) -> ApiError {
    let problem = format!("slot {slot} is running a request: try again when it has ended");
    ApiError::new(ErrorKind::Unavailable, problem).retry(Duration::from_secs(1))
}

fn foreign(slot: usize) -> ApiError {
    let problem = format!("the last request in slot {slot} used another API key");
    ApiError::new(ErrorKind::Forbidden, problem)
}

/// The error of a file.
fn failed(error: &EngineError, name: &str, path: &Path) -> ApiError {
    let kind = match error {
        EngineError::CacheFile(CacheFileError::Input(_)) => ErrorKind::NotFound,
        EngineError::CacheFile(CacheFileError::Damaged { .. } | CacheFileError::Mismatch { .. }) => {
            ErrorKind::Invalid
        }
        EngineError::CacheFile(CacheFileError::Full { .. } | CacheFileError::StatesFull { .. }) => {
            ErrorKind::Unavailable
        }
        _ => ErrorKind::Internal,
    };
    // The folder on the server is private, so the error has the name that the client has sent.
    let message = error.to_string().replace(&path.display().to_string(), name);
    ApiError::new(kind, message)
}

fn bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
