//! Embeddings in Ollama's formats.

use crate::app::RequestContext;
use crate::dialect::Dialect;
use crate::dialects::openai_embeddings::{EUCLIDEAN, Embeddings, check_dimensions, numbers};
use crate::document::{Document, write};
use crate::error::ApiError;
use crate::json::{ObjectFields, kind};
use crate::limits::Limits;
use crate::model::{PreparedPrompt, ServedModel};
use axum::body::Body;
use axum::response::Response;
use latent_text::EncodeOptions;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// `POST /api/embed`.
pub(crate) async fn embed(asker: RequestContext, body: Body) -> Response {
    asker.reply_document(Dialect::Ollama, many(&asker, body).await)
}

/// `POST /api/embeddings`: the deprecated form with one text.
pub(crate) async fn embed_one(asker: RequestContext, body: Body) -> Response {
    asker.reply_document(Dialect::Ollama, one(&asker, body).await)
}

async fn many(asker: &RequestContext, body: Body) -> Result<Document, ApiError> {
    let (started, charge) = (Instant::now(), Arc::clone(&asker.charge));
    let (served, prompts, model) = asker
        .read(body, move |app, served, fields| {
            let texts = texts(fields, &app.config.limits)?;
            // An upper bound: a token has at least one byte of text.
            charge.grow(texts.iter().map(|text| size_of::<u32>() * text.len()).sum())?;
            check_dimensions(fields, served)?;
            let truncate = fields.bool("truncate")?.unwrap_or(true);
            let prompts = texts
                .into_iter()
                .map(|text| prompt(served, text, truncate))
                .collect::<Result<Vec<_>, _>>()?;
            let model = fields.str("model")?.unwrap_or(&served.about.id).to_owned();
            Ok((Arc::clone(served), prompts, model))
        })
        .await?;
    let Embeddings { values, tokens } = Embeddings::of(asker, &served, prompts, EUCLIDEAN).await?;
    let value = json!({
        "model": model, "load_duration": 0, "prompt_eval_count": tokens,
        "total_duration": u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
    });
    Ok(Document::open(&value).field("embeddings").documents(values.into_iter().map(numbers)).close())
}

async fn one(asker: &RequestContext, body: Body) -> Result<Document, ApiError> {
    let charge = Arc::clone(&asker.charge);
    let (served, prompts) = asker
        .read(body, move |_, served, fields| {
            let text = fields.str("prompt")?.unwrap_or_default();
            charge.grow(size_of::<u32>() * text.len())?;
            // As in Ollama, a request without text only loads the model.
            let prompts = if text.is_empty() { Vec::new() } else { vec![prompt(served, text, true)?] };
            Ok((Arc::clone(served), prompts))
        })
        .await?;
    let mut embeddings = Embeddings::of(asker, &served, prompts, EUCLIDEAN).await?;
    let values = embeddings.values.pop().unwrap_or_default();
    Ok(Document::default()
        .raw("{\"embedding\":")
        .list(values.into_iter(), |value, out| write(out, &f64::from(value)))
        .close())
}

/// Parses `input`: a text or a list of texts.
fn texts<'v>(fields: &ObjectFields<'v>, limits: &Limits) -> Result<Vec<&'v str>, ApiError> {
    match fields.get("input") {
        None => Err(fields.missing("input")),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(list)) => {
            limits.check("input", "inputs", list.len(), limits.inputs)?;
            Ok(fields.texts("input")?.unwrap_or_default())
        }
        Some(other) => {
            let problem = format!("expected a string or a list of strings, found {}", kind(other));
            Err(fields.error("input", problem))
        }
    }
}

/// The prompt of a text. A text that is too long is truncated (Ollama's default) or an error.
fn prompt(served: &ServedModel, text: &str, truncate: bool) -> Result<PreparedPrompt, ApiError> {
    let how = EncodeOptions { add_special: true, parse_special: false };
    if !truncate {
        let prompt = served.text_prompt(text, how)?;
        served.check_length(&prompt)?;
        return Ok(prompt);
    }
    let mut tokens = served.tokenizer.encode(text, how).map_err(|error| served.text_error(error))?;
    // As `check_length` requires: fewer tokens than the context.
    tokens.truncate(served.context.saturating_sub(1));
    if tokens.is_empty() {
        return Err(ApiError::field("input", "the text has no tokens"));
    }
    Ok(PreparedPrompt { tokens, rendered: None })
}
