//! What the page of a drawing says about a model file besides its tensors: tokenizer, chat template, metadata.

use latent_formats::gguf::Value as GgufValue;
use latent_formats::{CheckpointSource, Outline, TokenizerPlace};
use latent_text::Tokenizer;
use latent_viz::{FileInfo, SpecialToken};
use serde_json::Value;

/// Characters of a metadata value, and of a chat template, that go into the page.
const VALUE: usize = 300;
const TEMPLATE: usize = 6000;
/// Special tokens that go into the page.
const SPECIAL: usize = 512;

/// The texts of `outline`, long ones cut. A tokenizer that cannot be read is a line of the page, not an error.
pub(super) fn file_info(outline: &Outline) -> FileInfo {
    let source = outline.source();
    let mut tokenizer: Vec<(String, String)> = Vec::new();
    let mut say = |what: &str, value: String| tokenizer.push((what.to_owned(), cut(&value, VALUE)));
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
        Err(error) => say("not read", error.to_string()),
    }
    FileInfo {
        tokenizer,
        special,
        template_bytes: template.as_ref().map(String::len),
        template: template.map(|text| cut(&text, TEMPLATE)),
        metadata: metadata(source),
    }
}

/// Control tokens in the order of their ids, with start and ends of a text first.
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
        SpecialToken { id, text: cut(text, VALUE), role: roles.join(", ") }
    };
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let end = tokenizer.end_of_generation();
    let mut special: Vec<SpecialToken> =
        ids.filter(|id| tokenizer.is_control(*id) || end.contains(id)).map(token).collect();
    special.sort_by_key(|token| (token.role.is_empty(), token.id));
    special.truncate(SPECIAL);
    special
}

/// Every metadata key with its value, cut.
fn metadata(source: &CheckpointSource) -> Vec<(String, String)> {
    match source {
        CheckpointSource::Gguf(gguf) => {
            let value = |value: &GgufValue| match value {
                GgufValue::String(text) => cut(text, VALUE),
                other => other.describe(),
            };
            gguf.metadata.entries().iter().map(|(key, v)| (cut(key, VALUE), value(v))).collect()
        }
        CheckpointSource::HuggingFace(hf) => {
            hf.config.iter().map(|(key, value)| (cut(key, VALUE), cut(&plain(value), VALUE))).collect()
        }
    }
}

/// A string as it is, any other value as JSON.
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
