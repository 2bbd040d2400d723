//! Ollama's API. Its streams are JSON lines.

mod answer;
mod embeddings;
mod request;

pub(crate) use answer::{chat, generate};
pub(crate) use embeddings::{embed, embed_one};

use crate::app::RequestContext;
use crate::dialect::{Dialect, json_response};
use crate::ids;
use crate::model::ServedModel;
use crate::models::ModelStatus;
use axum::body::Body;
use axum::response::Response;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::UNIX_EPOCH;

/// The version of Ollama with whose API this one is compatible.
const VERSION: &str = "0.12.0";

fn details(served: &ServedModel) -> Value {
    let billions = served.parameters as f64 / 1e9;
    let size = if billions >= 1.0 { format!("{billions:.1}B") } else { format!("{:.1}M", billions * 1e3) };
    json!({
        "parent_model": "", "format": "gguf", "family": served.architecture, "families": [served.architecture],
        "parameter_size": size, "quantization_level": served.about.quantization.as_deref().unwrap_or("unknown"),
    })
}

fn entry(model: &ModelStatus, created: u64) -> Value {
    let details = model.served.as_deref().map_or_else(
        || json!({"parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": "unknown"}),
        details,
    );
    let modified = modified_seconds(&model.path);
    json!({
        "name": model.name, "model": model.name, "modified_at": ids::rfc3339(modified.unwrap_or(created), 0),
        "size": model.bytes, "digest": digest(model, modified), "details": details,
    })
}

/// 64 hexadecimal digits that identify a model's file.
fn digest(model: &ModelStatus, modified: Option<u64>) -> String {
    // Ollama hashes the contents when it stores a model. Here that would read the whole file, so
    // the path, size and modification time are hashed.
    let identity = format!("{}\n{}\n{}", model.path, model.bytes, modified.unwrap_or_default());
    Sha256::digest(identity.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The modification time of a file, in seconds since 1970. `None` for a model without a file.
fn modified_seconds(path: &str) -> Option<u64> {
    let modified = std::fs::metadata(path).ok()?.modified().ok()?;
    modified.duration_since(UNIX_EPOCH).ok().map(|time| time.as_secs())
}

/// When an idle model is unloaded.
fn expires(model: &ModelStatus) -> String {
    match model.expires_in {
        Some(time) => ids::rfc3339(ids::now().saturating_add(time.as_secs()), 0),
        // Never. Ollama's maximum duration, 2^63 ns, is 292 years.
        None => "2318-01-01T00:00:00Z".to_owned(),
    }
}

/// `GET /api/tags`.
pub(crate) async fn tags(asker: RequestContext) -> Response {
    let created = asker.app.models.created;
    let value = asker.models().map(|models| {
        let entries: Value = models.iter().map(|model| entry(model, created)).collect();
        json!({"models": entries})
    });
    asker.reply_json(Dialect::Ollama, value)
}

/// `GET /api/ps`.
pub(crate) async fn ps(asker: RequestContext) -> Response {
    let created = asker.app.models.created;
    let loaded = |model: &ModelStatus| {
        let served = model.served.as_ref()?;
        let mut entry = entry(model, created);
        entry["expires_at"] = expires(model).into();
        entry["size_vram"] = 0.into();
        entry["context_length"] = served.context.into();
        Some(entry)
    };
    let value = asker.models().map(|models| {
        let entries: Value = models.iter().filter_map(loaded).collect();
        json!({"models": entries})
    });
    asker.reply_json(Dialect::Ollama, value)
}

/// `POST /api/show`.
pub(crate) async fn show(asker: RequestContext, body: Body) -> Response {
    let value = asker.read(body, |_, served, fields| {
        // Marks both names as read. `receive` has used them already.
        let _ = (fields.str("model")?, fields.str("name")?);
        let family = &served.architecture;
        let template = served.about.chat_template.as_deref().unwrap_or_default();
        let mut capabilities = vec!["completion"];
        if template.contains("tools") {
            capabilities.push("tools");
        }
        if template.contains("think") {
            capabilities.push("thinking");
        }
        let mut info = serde_json::Map::new();
        info.insert("general.architecture".into(), family.as_str().into());
        info.insert("general.parameter_count".into(), served.parameters.into());
        info.insert(format!("{family}.context_length"), served.context.into());
        info.insert(format!("{family}.embedding_length"), served.hidden.into());
        Ok(json!({
            "modelfile": "", "parameters": "", "template": template, "details": details(served),
            "model_info": info, "capabilities": capabilities, "modified_at": ids::rfc3339(served.created, 0),
        }))
    });
    asker.reply_json(Dialect::Ollama, value.await)
}

/// `GET /api/version`.
pub(crate) async fn version() -> Response {
    json_response(&json!({"version": VERSION}))
}
