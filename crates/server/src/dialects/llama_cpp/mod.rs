//! llama.cpp's own interface.

mod completion;
mod status;

pub(crate) use completion::completion;
pub(crate) use status::{health, metrics, props, slots};

use super::openai_chat::read_conversation;
use crate::app::Asker;
use crate::dialect::Dialect;
use crate::error::ApiError;
use axum::body::Body;
use axum::response::Response;
use latent_text::Encode;
use serde_json::{Value, json};

/// `POST /tokenize`.
pub(crate) async fn tokenize(asker: Asker, body: Body) -> Response {
    let value = asker.read(body, |_, served, fields| {
        let text = fields.str("content")?.ok_or_else(|| fields.missing("content"))?;
        let encode = Encode {
            add_special: fields.bool("add_special")?.unwrap_or(false),
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
        };
        let tokens = served.tokenizer.encode(text, encode).map_err(|error| served.text_error(error))?;
        let pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let piece = |id: &u32| {
            let bytes = served.tokenizer.piece(*id).unwrap_or_default();
            let piece = std::str::from_utf8(bytes).map_or_else(|_| Value::from(bytes), Value::from);
            json!({"id": id, "piece": piece})
        };
        let list: Vec<Value> = if pieces {
            tokens.iter().map(piece).collect()
        } else {
            tokens.iter().map(|id| (*id).into()).collect()
        };
        Ok(json!({"tokens": list}))
    });
    asker.reply_json(Dialect::LlamaCpp, value.await)
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(asker: Asker, body: Body) -> Response {
    let value = asker.read(body, |_, served, fields| {
        let list = fields.array("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
        let id = |(i, value): (usize, &Value)| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| {
                fields.error(&format!("tokens[{i}]"), format!("expected a token id, found {value}"))
            })
        };
        let tokens = list.iter().enumerate().map(id).collect::<Result<Vec<u32>, ApiError>>()?;
        let prompt = served.token_prompt("tokens", tokens)?;
        Ok(json!({"content": served.tokenizer.decode(&prompt.tokens, true)}))
    });
    asker.reply_json(Dialect::LlamaCpp, value.await)
}

/// `POST /apply-template`.
pub(crate) async fn apply_template(asker: Asker, body: Body) -> Response {
    let value = asker.read(body, |app, served, fields| {
        let conversation = read_conversation(fields, &app.config.limits)?;
        Ok(json!({"prompt": served.render(&conversation)?.text}))
    });
    asker.reply_json(Dialect::LlamaCpp, value.await)
}
