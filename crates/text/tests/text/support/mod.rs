//! Reads a converted tokenizer.

use latent_text::{GgufTokenizer, GgufVocab, Tokenizer};

/// The tokenizer of a GGUF file with these keys.
pub fn read(written: &GgufTokenizer) -> Tokenizer {
    let id = |key: &str| written.ids.iter().find(|(name, _)| *name == key).map(|(_, id)| *id);
    let flag = |key: &str| written.flags.iter().find(|(name, _)| *name == key).map(|(_, flag)| *flag);
    let vocab = GgufVocab {
        model: written.model,
        pre: Some(&written.pre),
        tokens: written.tokens.iter().map(String::as_bytes).collect(),
        token_types: Some(written.token_types.clone()),
        scores: written.scores.clone(),
        merges: written.merges.as_ref().map(|merges| merges.iter().map(String::as_bytes).collect()),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        eom: id("eom_token_id"),
        unknown: id("unknown_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        fim: latent_text::FimTokens::default(),
    };
    Tokenizer::from_gguf(&vocab).unwrap()
}
