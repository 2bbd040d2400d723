//! Embeddings in the formats of OpenAI and llama.cpp.

use super::prepare::{PromptInput, prompts};
use crate::app::RequestContext;
use crate::dialect::Dialect;
use crate::document::{Document, write};
use crate::error::ApiError;
use crate::json::ObjectFields;
use crate::model::{PreparedPrompt, ServedModel};
use crate::models::Lease;
use axum::body::Body;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use latent_engine::Pooling;
use serde_json::json;
use std::sync::Arc;

/// The embeddings of a request's texts, and the number of their tokens.
pub(super) struct Embeddings {
    pub(super) values: Vec<Vec<f32>>,
    pub(super) tokens: usize,
}

impl Embeddings {
    /// Embeds prompts one after the other. `norm` is the parameter of [`normalized`]. Without
    /// pooling, each token has a vector, which is not normalized.
    pub(super) async fn of(
        asker: &RequestContext,
        served: &Arc<Lease>,
        prompts: Vec<PreparedPrompt>,
        norm: i64,
    ) -> Result<Embeddings, ApiError> {
        let prompt_tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let vectors = match served.about.defaults.pooling {
            Pooling::None => prompt_tokens,
            _ => prompts.len(),
        };
        // Charged before the engine runs, since the vectors are collected before the response
        // begins. An f32 has the size of a token.
        asker.charge.grow(size_of::<u32>() * (prompt_tokens + vectors * served.hidden))?;
        let mut embeddings = Embeddings { values: Vec::with_capacity(prompts.len()), tokens: 0 };
        for prompt in prompts {
            let (values, length, usage) = asker.embed(served, prompt.tokens).await?;
            embeddings.tokens += usage.prompt;
            embeddings.values.push(match served.about.defaults.pooling {
                Pooling::None => values,
                _ => normalized(values, length, norm),
            });
        }
        Ok(embeddings)
    }
}

/// A JSON list of numbers.
pub(super) fn numbers(values: Vec<f32>) -> Document {
    Document::default().list(values.into_iter(), |value, out| write(out, &f64::from(value)))
}

/// Refuses `dimensions` other than the model's, and servers without pooling.
pub(super) fn check_dimensions(fields: &ObjectFields<'_>, served: &ServedModel) -> Result<(), ApiError> {
    if served.about.defaults.pooling == Pooling::None {
        let problem = "the server runs without pooling and has one vector per token: use /embeddings, or \
                       start it with another --pooling";
        return Err(ApiError::invalid(problem));
    }
    match fields.usize("dimensions")?.filter(|dimensions| *dimensions != served.hidden) {
        None => Ok(()),
        Some(dimensions) => {
            let problem = format!(
                "the model has {} dimensions, which cannot be reduced to {dimensions}",
                served.hidden
            );
            Err(fields.error("dimensions", problem))
        }
    }
}

/// `POST /v1/embeddings`.
pub(crate) async fn handle(asker: RequestContext, body: Body) -> Response {
    asker.reply_document(Dialect::OpenAi, answer(&asker, body).await)
}

async fn answer(asker: &RequestContext, body: Body) -> Result<Document, ApiError> {
    let (served, prompts, model, base64, norm) = asker
        .read(body, |app, served, fields| {
            let name = input_name(fields);
            let prompts = prompts(served, fields, name, &app.config.limits, PromptInput::Plain)
                .map_err(ApiError::embeds)?;
            check_dimensions(fields, served)?;
            let base64 = match fields.str("encoding_format")? {
                None | Some("float") => false,
                Some("base64") => true,
                Some(other) => {
                    return Err(fields.error(
                        "encoding_format",
                        format!("unknown value {other:?}, expected float or base64"),
                    ));
                }
            };
            let model = fields.str("model")?.unwrap_or(&served.about.id).to_owned();
            let norm = norm(fields)?;
            Ok((Arc::clone(served), prompts, model, base64, norm))
        })
        .await?;
    let Embeddings { values, tokens } = Embeddings::of(asker, &served, prompts, norm).await?;
    let value = json!({
        "object": "list", "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    let one = move |(index, values): (usize, Vec<f32>)| {
        let document = Document::open(&json!({"object": "embedding", "index": index})).field("embedding");
        // OpenAI's Python package requests base64 by default: little-endian f32.
        if base64 {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            return document.value(&STANDARD.encode(bytes)).close();
        }
        document.list(values.into_iter(), |value, out| write(out, &f64::from(value))).close()
    };
    Ok(Document::open(&value).field("data").documents(values.into_iter().enumerate().map(one)).close())
}

/// The name of the field with the texts. llama.cpp's clients may send `content`.
fn input_name(fields: &ObjectFields<'_>) -> &'static str {
    if fields.get("input").is_none() && fields.get("content").is_some() { "content" } else { "input" }
}

/// `POST /embedding` and `POST /embeddings`: llama.cpp's format, a list of vectors per text.
pub(crate) async fn handle_llama_cpp(asker: RequestContext, body: Body) -> Response {
    asker.reply_document(Dialect::LlamaCpp, llama_cpp(&asker, body).await)
}

async fn llama_cpp(asker: &RequestContext, body: Body) -> Result<Document, ApiError> {
    let (served, prompts, norm) = asker
        .read(body, |app, served, fields| {
            let name = input_name(fields);
            let prompts = prompts(served, fields, name, &app.config.limits, PromptInput::Plain)
                .map_err(ApiError::embeds)?;
            let norm = norm(fields)?;
            Ok((Arc::clone(served), prompts, norm))
        })
        .await?;
    let embeddings = Embeddings::of(asker, &served, prompts, norm).await?;
    let hidden = served.hidden.max(1);
    let one = move |(index, values): (usize, Vec<f32>)| {
        // Without pooling, `values` has a vector for each token.
        let count = values.len().div_ceil(hidden);
        let vectors =
            (0..count).map(move |i| numbers(values[i * hidden..].iter().take(hidden).copied().collect()));
        Document::open(&json!({"index": index})).field("embedding").documents(vectors).close()
    };
    Ok(Document::default().documents(embeddings.values.into_iter().enumerate().map(one)))
}

/// llama.cpp's number for the Euclidean norm.
pub(super) const EUCLIDEAN: i64 = 2;

/// Maximum p of a p-norm. Larger powers of small elements underflow.
const MAX_NORM: i64 = 64;

/// The field `embd_normalize`.
fn norm(fields: &ObjectFields<'_>) -> Result<i64, ApiError> {
    let norm = fields.i64("embd_normalize")?.unwrap_or(EUCLIDEAN);
    if !(-1..=MAX_NORM).contains(&norm) {
        let problem = format!("{norm} is out of range: expected an integer from -1 to {MAX_NORM}");
        return Err(fields.error("embd_normalize", problem));
    }
    Ok(norm)
}

/// Converts an embedding of Euclidean norm 1 to another of llama.cpp's normalizations: −1 none
/// (multiplies by the original norm `length`), 0 scales to 16-bit integers, others are p-norms.
fn normalized(mut values: Vec<f32>, length: f32, norm: i64) -> Vec<f32> {
    let factor = match norm {
        EUCLIDEAN => return values,
        -1 => f64::from(length),
        // llama.cpp's constant in `common_embd_normalize`.
        0 => 32760.0 / values.iter().fold(0.0, |max: f64, value| max.max(f64::from(value.abs()))),
        p => {
            let p = p as f64;
            values.iter().map(|value| f64::from(value.abs()).powf(p)).sum::<f64>().powf(p.recip()).recip()
        }
    };
    // A vector of zeros stays as it is.
    if factor.is_finite() {
        values.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_divided_by_their_norm() {
        let of = |norm| normalized(vec![0.6, -0.8], 5.0, norm);
        assert_eq!(of(2), [0.6, -0.8]);
        let near = |found: Vec<f32>, expected: [f32; 2]| {
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs())
        };
        // −1 restores the original length. 0 scales to the range of i16, as in llama.cpp.
        assert!(near(of(-1), [3.0, -4.0]));
        assert!(near(of(1), [3.0 / 7.0, -4.0 / 7.0]));
        assert!(near(of(0), [24570.0, -32760.0]));
        let cube = of(3);
        assert!((cube[0].powi(3) - cube[1].powi(3) - 1.0).abs() < 1e-5);
        assert_eq!(normalized(vec![0.0, 0.0], 0.0, 1), [0.0, 0.0]);
    }
}
