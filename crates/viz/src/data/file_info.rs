//! Tokenizer and metadata of a model file, for the page.

use serde::Serialize;

/// Information about a model file, except its tensors. The caller truncates long texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileInfo {
    /// Properties of the tokenizer, with their values.
    pub tokenizer: Vec<(String, String)>,
    pub special: Vec<SpecialToken>,
    /// The beginning of the chat template.
    pub template: Option<String>,
    /// Bytes of the whole chat template.
    pub template_bytes: Option<usize>,
    /// Metadata keys, or keys of config.json, with their values.
    pub metadata: Vec<(String, String)>,
}

/// A control token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpecialToken {
    pub id: u32,
    /// Its text in the vocabulary.
    pub text: String,
    /// `BOS`, `EOS`, `EOG`, joined with commas; empty for other tokens.
    pub role: String,
}
