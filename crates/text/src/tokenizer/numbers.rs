//! A substitute tokenizer for models whose files contain none.

use super::hf::TokenRoles;
use super::{GgufVocab, Tokenizer, gguf};
use crate::error::TextError;
use latent_formats::CheckpointSource;

impl Tokenizer {
    /// A tokenizer for a model without one. A token decodes to its id and a space; text cannot be
    /// encoded. The tokens that end generation are those that the model's files name.
    pub fn of_numbers(source: &CheckpointSource, vocab_size: usize) -> Result<Tokenizer, TextError> {
        let end = match source {
            CheckpointSource::Gguf(source) => {
                let id = source.metadata.u64("tokenizer.ggml.eos_token_id")?;
                id.and_then(|id| u32::try_from(id).ok()).into_iter().collect()
            }
            CheckpointSource::HuggingFace(source) => {
                TokenRoles::new(None, source.generation_config.as_ref()).listed()
            }
        };
        let texts: Vec<String> = (0..vocab_size).map(|id| format!("{id} ")).collect();
        let tokens = texts.iter().map(String::as_bytes).collect();
        // SentencePiece needs no merges, so a vocabulary with equal scores is enough for decoding.
        let scores = Some(vec![0.0; vocab_size]);
        let vocab = GgufVocab { model: "llama", tokens, scores, ..GgufVocab::default() };
        let vocab = GgufVocab { add_bos: Some(false), add_space_prefix: Some(false), ..vocab };
        gguf::sentence_piece(&vocab, end)
    }
}
