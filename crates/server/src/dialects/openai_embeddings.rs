//! Embeddings.

use super::prepare::{PromptInput, prompts};
use crate::app::Asker;
use crate::dialect::Dialect;
use crate::document::{Document, write};
use crate::error::ApiError;
use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::sync::Arc;

/// `POST /v1/embeddings`: the mean of the last hidden states, divided by its length.
pub(crate) async fn handle(asker: Asker, body: Body) -> Response {
    asker.reply_document(Dialect::OpenAi, answer(&asker, body).await)
}

async fn answer(asker: &Asker, body: Body) -> Result<Document, ApiError> {
    let (served, prompts, model, base64, norm) = asker
        .read(body, |app, served, fields| {
            let name = if fields.get("input").is_some() { "input" } else { "content" };
            let prompts = prompts(served, fields, name, &app.config.limits, PromptInput::Plain)?;
            if let Some(dimensions) =
                fields.usize("dimensions")?.filter(|dimensions| *dimensions != served.hidden)
            {
                let problem =
                    format!("{dimensions} are not the model's {}, which cannot be cut", served.hidden);
                return Err(fields.error("dimensions", problem));
            }
            let base64 = match fields.str("encoding_format")? {
                None | Some("float") => false,
                Some("base64") => true,
                Some(other) => {
                    return Err(
                        fields.error("encoding_format", format!("{other:?} is neither float nor base64"))
                    );
                }
            };
            let model = fields.str("model")?.unwrap_or(&served.about.id).to_owned();
            let norm = fields.i64("embd_normalize")?.unwrap_or(EUCLIDEAN);
            if !(-1..=MAX_NORM).contains(&norm) {
                let problem = format!("{norm} is no norm: expected a whole number from -1 to {MAX_NORM}");
                return Err(fields.error("embd_normalize", problem));
            }
            Ok((Arc::clone(served), prompts, model, base64, norm))
        })
        .await?;
    let prompt_tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    asker.charge.grow(size_of::<u32>() * (prompt_tokens + prompts.len() * served.hidden))?;
    let (mut all, mut tokens) = (Vec::with_capacity(prompts.len()), 0);
    for prompt in prompts {
        let (values, length, usage) = asker.embed(&served, prompt.tokens).await?;
        tokens += usage.prompt;
        all.push(normalised(values, length, norm));
    }
    let value = json!({
        "object": "list", "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    let one = move |(index, values): (usize, Vec<f32>)| {
        let document = Document::open(&json!({"object": "embedding", "index": index})).field("embedding");
        if base64 {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            return document.value(&STANDARD.encode(bytes)).close();
        }
        document.list(values.into_iter(), |value, out| write(out, &f64::from(value))).close()
    };
    Ok(Document::open(&value).field("data").documents(all.into_iter().enumerate().map(one)).close())
}

/// llama.cpp's number of the Euclidean norm.
const EUCLIDEAN: i64 = 2;

/// The largest p of a p-norm.
const MAX_NORM: i64 = 64;

/// An embedding of length 1 under another of llama.cpp's norms: −1 is none, so that it gets the length back that it was divided by, 0 the range of
/// 16-bit integers, and others are p-norms.
fn normalised(mut values: Vec<f32>, length: f32, norm: i64) -> Vec<f32> {
    let factor = match norm {
        EUCLIDEAN => return values,
        -1 => f64::from(length),
        0 => 32760.0 / values.iter().fold(0.0, |most: f64, value| most.max(f64::from(value.abs()))),
        p => {
            let p = p as f64;
            values.iter().map(|value| f64::from(value.abs()).powf(p)).sum::<f64>().powf(p.recip()).recip()
        }
    };
    if factor.is_finite() {
        values.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
    values
}
