//! The list of models, and its changes.
//!
//! `/v1/models` is the same address in several APIs, so each entry is the union of the fields of
//! OpenAI, Anthropic and llama.cpp.

use crate::app::{RequestContext, RouteName, parameter};
use crate::catalog::DownloadProgress;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::ids;
use crate::models::ModelStatus;
use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// The entry of a model. `max_model_len` and `meta` exist only while it is loaded.
pub(super) fn entry(model: &ModelStatus, created: u64) -> Value {
    let mut value = json!({
        "id": model.name,
        "object": "model",
        "type": "model",
        "created": created,
        "created_at": ids::rfc3339(created, 0),
        "display_name": model.name,
        "owned_by": "latent",
        "aliases": std::iter::once(&model.name).chain(&model.aliases).collect::<Vec<_>>(),
        "tags": model.tags,
        "can_remove": model.removable,
        "status": status(model),
    });
    if let Some(served) = &model.served {
        // vLLM's name for the context length.
        value["max_model_len"] = served.context.into();
        value["meta"] = json!({
            // llama.cpp's LLAMA_VOCAB_TYPE_BPE.
            "vocab_type": 2,
            "n_vocab": served.vocab,
            "n_ctx": served.context,
            "n_ctx_train": served.trained_context,
            "n_embd": served.hidden,
            "n_params": served.parameters,
            "size": served.about.bytes,
            "ftype": served.about.quantization,
        });
    }
    value
}

/// The entry of a model that is being downloaded.
fn download(name: &str, progress: Option<&DownloadProgress>, created: u64) -> Value {
    let mut status = json!({"value": "downloading"});
    if let Some(DownloadProgress { source, done, total }) = progress {
        status["progress"] = json!({source.as_str(): {"done": done, "total": total}});
    }
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "created": created,
        "created_at": ids::rfc3339(created, 0),
        "display_name": name,
        "owned_by": "latent",
        "aliases": [name],
        "tags": [],
        "can_remove": false,
        "status": status,
    })
}

/// The status in the format of llama.cpp's router.
fn status(model: &ModelStatus) -> Value {
    match &model.problem {
        Some(problem) => json!({"value": "unloaded", "failed": true, "problem": problem}),
        None => json!({"value": model.state}),
    }
}

/// The entry in `models`, a second list that llama.cpp's server adds for Ollama's clients. Codex
/// reads `slug` and `context_window`.
fn own_entry(model: &ModelStatus) -> Value {
    let id = &model.name;
    let mut value = json!({
        "name": id, "model": id, "slug": id, "display_name": id, "type": "model", "description": "",
        "capabilities": ["completion"],
        "details": {"format": "gguf", "family": "", "parameter_size": "", "quantization_level": ""},
    });
    if let Some(served) = &model.served {
        value["context_window"] = served.context.into();
        value["details"]["family"] = served.architecture.as_str().into();
    }
    value
}

/// `GET /v1/models`. `?reload=1` reads the list again before, as in llama.cpp's router.
pub(crate) async fn list(asker: RequestContext, uri: Uri) -> Response {
    let created = asker.app.models.created;
    let reload = parameter(&uri, "reload").is_some_and(|value| !matches!(value.as_str(), "" | "0" | "false"));
    let app = Arc::clone(&asker.app);
    let reloaded = if reload {
        let turn = app.models.turn().await;
        asker.blocking(move || app.models.reload(&turn)).await
    } else {
        Ok(())
    };
    let downloads = asker.app.models.downloads();
    let downloads = downloads.iter().map(|(name, progress)| download(name, progress.as_ref(), created));
    let listed = reloaded.and_then(|()| asker.models()).map(|models| {
        json!({
            "object": "list",
            "data": models.iter().map(|model| entry(model, created)).chain(downloads).collect::<Value>(),
            // Anthropic's fields for pages of a list. There is only one page.
            "has_more": false,
            "first_id": models.first().map(|model| &model.name),
            "last_id": models.last().map(|model| &model.name),
            "models": models.iter().map(own_entry).collect::<Value>(),
        })
    });
    asker.reply_json(Dialect::OpenAi, listed)
}

/// `GET /v1/models/ID`.
pub(crate) async fn one(asker: RequestContext, RouteName(id): RouteName) -> Response {
    asker.reply_json(Dialect::OpenAi, find(&asker, &id))
}

/// `POST /models/load`. As in llama.cpp's router, the response does not wait for the load.
pub(crate) async fn load(asker: RequestContext, body: Body) -> Response {
    asker.reply_json(
        Dialect::LlamaCpp,
        asker.receive_name(body).await.and_then(|name| {
            let models = &asker.app.models;
            models.load(models.find(Some(&name))?)?;
            Ok(json!({"success": true}))
        }),
    )
}

/// `POST /models/unload`. Also cancels the download of a model.
pub(crate) async fn unload(asker: RequestContext, body: Body) -> Response {
    asker.reply_json(
        Dialect::LlamaCpp,
        asker.receive_name(body).await.and_then(|name| {
            let models = &asker.app.models;
            if !models.stop_download(&name) {
                models.unload(models.find(Some(&name))?);
            }
            Ok(json!({"success": true}))
        }),
    )
}

/// `POST /models`: starts a download. `GET /models/sse` reports its progress.
pub(crate) async fn begin_download(asker: RequestContext, body: Body) -> Response {
    let begun = match asker.receive_name(body).await {
        Ok(name) => {
            let app = Arc::clone(&asker.app);
            asker.blocking(move || app.models.download(&name)).await
        }
        Err(error) => Err(error),
    };
    asker.reply_json(Dialect::LlamaCpp, begun.map(|()| json!({"success": true})))
}

/// `DELETE /models?model=NAME`: deletes the files of a downloaded model.
pub(crate) async fn delete(asker: RequestContext) -> Response {
    let app = Arc::clone(&asker.app);
    let deleted = match asker.model.clone().filter(|name| !name.is_empty()) {
        Some(name) => {
            let turn = app.models.turn().await;
            asker.blocking(move || app.models.delete(&name, &turn)).await
        }
        None => Err(ApiError::field("model", "the address must name it: DELETE /models?model=NAME")),
    };
    asker.reply_json(Dialect::LlamaCpp, deleted.map(|()| json!({"success": true})))
}

fn find(asker: &RequestContext, id: &str) -> Result<Value, ApiError> {
    let models = asker.models()?;
    let is_called = |model: &&ModelStatus| model.name == id || model.aliases.iter().any(|alias| alias == id);
    let known = models.iter().find(is_called);
    let model = known.ok_or_else(|| asker.app.models.unknown(id))?;
    Ok(entry(model, asker.app.models.created))
}
