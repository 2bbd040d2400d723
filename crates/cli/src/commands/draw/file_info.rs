//! Facts about a model file on the page of a drawing, other than tensors: tokenizer, chat template,
//! metadata.

use latent_formats::gguf::Value as GgufValue;
use latent_formats::{CheckpointSource, Outline, TokenizerPlace};
use latent_text::Tokenizer;
use latent_viz::{FileInfo, SpecialToken};
use serde_json::Value;

/// Maximum characters of a metadata value and of a chat template.
const MAX_VALUE_CHARS: usize = 300;
const MAX_TEMPLATE_CHARS: usize = 6000;
/// Maximum special tokens.
const MAX_SPECIAL_TOKENS: usize = 512;

/// The texts of `outline`, with long ones cut.
pub(super) fn file_info(outline: &Outline) -> FileInfo {
    let source = outline.source();
    let mut tokenizer: Vec<(String, String)> = Vec::new();
    let mut say = |what: &str, value: String| tokenizer.push((what.to_owned(), cut(&value, MAX_VALUE_CHARS)));
    let template = match source {
        CheckpointSource::Gguf(gguf) => {
            let text = |key: &str| gguf.metadata.str(key).ok().flatten().map(str::to_owned);
            if let Some(model) = text("tokenizer.ggml.model") {
                say("model", model);
            }
            if let Some(pre) = text("tokenizer.ggml.pre") {
                say("pre-tokenizer", pre);
            }
            text("tokenizer.chat_template")
        }
        CheckpointSource::HuggingFace(hf) => {
            if let Some(file) = &hf.tokenizer {
                say(
                    "file",
                    match &file.place {
                        TokenizerPlace::File(path) => path.display().to_string(),
                        // A packed file contains the tokenizer's file.
                        TokenizerPlace::Held(_) => format!("{} in this file", file.kind.file_name()),
                    },
                );
                let json = file.read().ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
                let json = json.unwrap_or_default();
                for (what, value) in
                    [("model", &json["model"]["type"]), ("pre-tokenizer", &json["pre_tokenizer"])]
                {
                    if !value.is_null() {
                        say(what, plain(value));
                    }
                }
            }
            hf.chat_template.clone()
        }
    };
    let mut special = Vec::new();
    match Tokenizer::from_source(source) {
        Ok(made) => {
            say("vocabulary", format!("{} tokens", made.vocab_size()));
            say("adds BOS", if made.adds_bos() { "yes" } else { "no" }.to_owned());
            special = special_tokens(&made);
        }
        // A line of the page, not an error: the rest of the file is still worth drawing.
        Err(error) => say("not read", error.to_string()),
    }
    FileInfo {
        tokenizer,
        special,
        template_bytes: template.as_ref().map(String::len),
        template: template.map(|text| cut(&text, MAX_TEMPLATE_CHARS)),
        metadata: metadata(source),
    }
}

/// Control tokens by ID. Those with a role (BOS, EOS) come first.
fn special_tokens(tokenizer: &Tokenizer) -> Vec<SpecialToken> {
    let token = |id: u32| {
        let mut roles = Vec::new();
        if tokenizer.bos() == Some(id) {
            roles.push("BOS");
        }
        if tokenizer.eos() == Some(id) {
            roles.push("EOS");
        }
        if tokenizer.end_of_generation().contains(&id) {
            roles.push("EOG");
        }
        let text = tokenizer.token_text(id).unwrap_or_default();
        SpecialToken { id, text: cut(text, MAX_VALUE_CHARS), role: roles.join(", ") }
    };
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let end = tokenizer.end_of_generation();
    let mut special: Vec<SpecialToken> =
        ids.filter(|id| tokenizer.is_control(*id) || end.contains(id)).map(token).collect();
    // Tokens with a role come before the cut of `truncate`.
    special.sort_by_key(|token| (token.role.is_empty(), token.id));
    special.truncate(MAX_SPECIAL_TOKENS);
    special
}

/// All metadata keys with their values, long ones cut.
fn metadata(source: &CheckpointSource) -> Vec<(String, String)> {
    match source {
        CheckpointSource::Gguf(gguf) => {
            let value = |value: &GgufValue| match value {
                GgufValue::String(text) => cut(text, MAX_VALUE_CHARS),
                other => other.describe(),
            };
            gguf.metadata.entries().iter().map(|(key, v)| (cut(key, MAX_VALUE_CHARS), value(v))).collect()
        }
        CheckpointSource::HuggingFace(hf) => hf
            .config
            .iter()
            .map(|(key, value)| (cut(key, MAX_VALUE_CHARS), cut(&plain(value), MAX_VALUE_CHARS)))
            .collect(),
    }
}

/// A string unquoted, any other value as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn cut(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("äöü", 3), "äöü");
        assert_eq!(cut("äöü", 2), "äö… (6 bytes)");
    }
}
