//! The native API of llama.cpp's server.

mod completion;
mod lora;
mod slots;
mod status;
mod unavailable;

pub(crate) use completion::{completion, infill};
pub(crate) use lora::{lora_adapters, set_lora_adapters};
pub(crate) use slots::{slot_action, slots};
pub(crate) use status::{health, metrics, props};
pub(crate) use unavailable::{change_props, cors_proxy, rerank, tools};

use super::openai_chat::read_conversation;
use crate::app::RequestContext;
use crate::dialect::Dialect;
use crate::document::{Document, write};
use crate::error::ApiError;
use axum::body::Body;
use axum::response::Response;
use latent_text::{Detokenizer, EncodeOptions};
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// A token of `/tokenize` with `with_pieces`.
#[derive(Serialize)]
struct TokenPiece<'a> {
    id: u32,
    piece: PieceText<'a>,
}

/// The text of a token, or its bytes if they are not valid UTF-8.
#[derive(Serialize)]
#[serde(untagged)]
enum PieceText<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(asker: RequestContext, body: Body) -> Response {
    let charge = Arc::clone(&asker.charge);
    let document = asker.read(body, move |_, served, fields| {
        let text = fields.str("content")?.ok_or_else(|| fields.missing("content"))?;
        let encode = EncodeOptions {
            add_special: fields.bool("add_special")?.unwrap_or(false),
            // llama.cpp's defaults.
            parse_special: fields.bool("parse_special")?.unwrap_or(true),
        };
        let pieces = fields.bool("with_pieces")?.unwrap_or(false);
        let mut tokens = served.tokenizer.encode(text, encode).map_err(|error| served.text_error(error))?;
        // The tokens replace the body, whose charge ends here.
        tokens.shrink_to_fit();
        charge.set(size_of::<u32>() * tokens.len())?;
        let tokenizer = Arc::clone(&served.tokenizer);
        let element = move |id: u32, out: &mut Vec<u8>| {
            if !pieces {
                return write(out, &id);
            }
            let bytes = tokenizer.piece(id).unwrap_or_default();
            let piece = std::str::from_utf8(bytes).map_or(PieceText::Bytes(bytes), PieceText::Text);
            write(out, &TokenPiece { id, piece });
        };
        Ok(Document::default().raw("{\"tokens\":").list(tokens.into_iter(), element).close())
    });
    asker.reply_document(Dialect::LlamaCpp, document.await)
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(asker: RequestContext, body: Body) -> Response {
    let charge = Arc::clone(&asker.charge);
    let document = asker.read(body, move |_, served, fields| {
        let list = fields.array("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
        let id = |(i, value): (usize, &Value)| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.ok_or_else(|| {
                fields.error(&format!("tokens[{i}]"), format!("expected a token id, found {value}"))
            })
        };
        let tokens = list.iter().enumerate().map(id).collect::<Result<Vec<u32>, ApiError>>()?;
        // Checks that the IDs are in the vocabulary.
        let tokens = served.token_prompt("tokens", tokens)?.tokens;
        charge.set(size_of::<u32>() * tokens.capacity())?;
        let mut text = Detokenizer::new(Arc::clone(&served.tokenizer), true);
        // At the end, the bytes of an incomplete character.
        let ids = tokens.into_iter().map(Some).chain([None]);
        let pieces = ids.map(move |id| match id {
            Some(id) => text.push(id),
            None => text.finish(),
        });
        Ok(Document::default().raw("{\"content\":").string(pieces).close())
    });
    asker.reply_document(Dialect::LlamaCpp, document.await)
}

/// `POST /apply-template`.
pub(crate) async fn apply_template(asker: RequestContext, body: Body) -> Response {
    let charge = Arc::clone(&asker.charge);
    let document = asker.read(body, move |app, served, fields| {
        let conversation = read_conversation(fields, &app.config.limits)?;
        let prompt = served.render_text(&conversation)?;
        charge.set(prompt.capacity())?;
        Ok(Document::default().raw("{\"prompt\":").text(prompt).close())
    });
    asker.reply_document(Dialect::LlamaCpp, document.await)
}
