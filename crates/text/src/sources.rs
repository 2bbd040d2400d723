//! Chat and response templates in a model's files.

use latent_formats::{Checkpoint, CheckpointSource, FormatError};
use serde_json::Value;

/// The source text of a model's chat template, if it has one.
pub fn chat_template(checkpoint: &Checkpoint) -> Result<Option<&str>, FormatError> {
    match checkpoint.source() {
        CheckpointSource::Gguf(g) => g.metadata.str("tokenizer.chat_template"),
        CheckpointSource::HuggingFace(hf) => Ok(hf.chat_template.as_deref()),
    }
}

/// The checkpoint's own `response_template`, if it has one.
pub fn response_template(checkpoint: &Checkpoint) -> Option<&Value> {
    match checkpoint.source() {
        CheckpointSource::Gguf(_) => None,
        CheckpointSource::HuggingFace(source) => source.tokenizer_config.as_ref()?.get("response_template"),
    }
}
