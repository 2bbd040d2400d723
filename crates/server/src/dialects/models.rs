//! The list of models, in one form that OpenAI's, Anthropic's, llama.cpp's and Codex's clients read.

use crate::app::{Asker, Name};
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::ids;
use crate::models::Status;
use axum::body::Body;
use axum::response::Response;
use serde_json::{Value, json};

/// One entry. What only a loaded model tells is left out before.
fn entry(model: &Status, created: u64) -> Value {
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
        "status": status(model),
    });
    if let Some(served) = &model.served {
        value["max_model_len"] = served.context.into();
        value["meta"] = json!({
            "vocab_type": 2,
            "n_vocab": served.vocab,
            "n_ctx": served.context,
            "n_ctx_train": served.trained_context,
            "n_embd": served.hidden,
            "n_params": served.parameters,
            "size": served.about.bytes,
        });
    }
    value
}

/// As the router of llama.cpp's server tells it.
fn status(model: &Status) -> Value {
    match &model.problem {
        Some(problem) => json!({"value": "unloaded", "failed": true, "problem": problem}),
        None => json!({"value": model.state}),
    }
}

/// The entry that Codex reads, in llama.cpp's form.
fn own_entry(model: &Status) -> Value {
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

/// `GET /v1/models`.
pub(crate) async fn list(asker: Asker) -> Response {
    let created = asker.app.models.created;
    let listed = asker.models().map(|models| {
        json!({
            "object": "list",
            "data": models.iter().map(|model| entry(model, created)).collect::<Value>(),
            "has_more": false,
            "first_id": models.first().map(|model| &model.name),
            "last_id": models.last().map(|model| &model.name),
            "models": models.iter().map(own_entry).collect::<Value>(),
        })
    });
    asker.reply_json(Dialect::OpenAi, listed)
}

/// `GET /v1/models/ID`.
pub(crate) async fn one(asker: Asker, Name(id): Name) -> Response {
    asker.reply_json(Dialect::OpenAi, find(&asker, &id))
}

/// `POST /models/load`, as llama.cpp's router has it: answered at once, while the model is being loaded.
pub(crate) async fn load(asker: Asker, body: Body) -> Response {
    asker.reply_json(
        Dialect::LlamaCpp,
        named(&asker, body).await.and_then(|index| {
            asker.app.models.load(index)?;
            Ok(json!({"success": true}))
        }),
    )
}

/// `POST /models/unload`.
pub(crate) async fn unload(asker: Asker, body: Body) -> Response {
    asker.reply_json(
        Dialect::LlamaCpp,
        named(&asker, body).await.map(|index| {
            asker.app.models.unload(index);
            json!({"success": true})
        }),
    )
}

/// The model that a body must name.
async fn named(asker: &Asker, body: Body) -> Result<usize, ApiError> {
    let received = asker.receive(body).await?;
    let (received, ()) = asker.look(received, |fields| fields.require_str("model").map(|_| ())).await?;
    Ok(received.model())
}

fn find(asker: &Asker, id: &str) -> Result<Value, ApiError> {
    let models = asker.models()?;
    let is_called = |model: &&Status| model.name == id || model.aliases.iter().any(|alias| alias == id);
    let known = models.iter().find(is_called);
    let model = known.ok_or_else(|| asker.app.models.unknown(id))?;
    Ok(entry(model, asker.app.models.created))
}
