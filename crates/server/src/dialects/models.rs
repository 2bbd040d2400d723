//! The list of models, in one form that OpenAI's, Anthropic's, llama.cpp's and Codex's clients read.

use crate::app::Asker;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use crate::ids;
use crate::model::Served;
use axum::extract::Path;
use axum::response::Response;
use serde_json::{Value, json};

fn entry(served: &Served) -> Value {
    json!({
        "id": served.about.id,
        "object": "model",
        "type": "model",
        "created": served.created,
        "created_at": ids::rfc3339(served.created, 0),
        "display_name": served.about.id,
        "owned_by": "latent",
        "max_model_len": served.context,
        "meta": {
            "vocab_type": 2,
            "n_vocab": served.vocab,
            "n_ctx": served.context,
            "n_ctx_train": served.trained_context,
            "n_embd": served.hidden,
            "n_params": served.parameters,
            "size": served.about.bytes,
        },
    })
}

/// `GET /v1/models`.
pub(crate) async fn list(asker: Asker) -> Response {
    let listed = asker.served().map(|served| {
        let id = served.about.id.as_str();
        // Codex reads `models`, llama.cpp's own form
        let own = json!({
            "name": id, "model": id, "slug": id, "display_name": id, "type": "model", "description": "",
            "capabilities": ["completion"], "context_window": served.context,
            "details": {"format": "gguf", "family": served.architecture, "parameter_size": "", "quantization_level": ""},
        });
        json!({
            "object": "list",
            "data": [entry(&served)],
            "has_more": false,
            "first_id": id,
            "last_id": id,
            "models": [own],
        })
    });
    asker.reply_json(Dialect::OpenAi, listed)
}

/// `GET /v1/models/ID`.
pub(crate) async fn one(asker: Asker, Path(id): Path<String>) -> Response {
    let found = asker.served().and_then(|served| {
        if id == served.about.id {
            return Ok(entry(&served));
        }
        let problem = format!("there is no model {id:?}; this server has {:?}", served.about.id);
        Err(ApiError::new(ErrorKind::NotFound, problem).with_code("model_not_found"))
    });
    asker.reply_json(Dialect::OpenAi, found)
}
