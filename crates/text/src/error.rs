//! Errors of tokenizers and chat templates.

use latent_types::Setting;
/// An error of a tokenizer or a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer whose rules are not known: text would silently be split wrongly.
    #[error("unknown {what} {found:?}; supported: {known}")]
    Unknown { what: &'static str, found: String, known: String },
    /// A pre-tokenizer without rules here: text would silently be split wrongly.
    #[error(
        "unknown pre-tokenizer {found:?} in tokenizer.ggml.pre; supported: {known}. Use the original folder, \
         whose tokenizer.json holds the rules, or, if a supported one has the same rules, convert the model with {}",
        Setting::PreTokenizer
    )]
    UnknownPre { found: String, known: String },
    #[error("the tokenizer is malformed: {0}")]
    Malformed(String),
    /// A component of tokenizer.json, or a value in one, that is not admitted.
    #[error("tokenizer.json: {place} {found}; accepted: {accepted}")]
    Component { place: String, found: String, accepted: String },
    #[error("the text of {bytes} bytes has at least {tokens} tokens, more than {limit}")]
    TooLong {
        bytes: usize,
        limit: usize,
        /// A lower bound on the tokens of the text: counting stopped there.
        tokens: usize,
    },
    #[error("the {what} cannot be used: a library fails on it ({problem}); please report this")]
    Internal { what: String, problem: String },
    /// A metadata key or file of the tokenizer cannot be read.
    #[error(transparent)]
    Format(#[from] latent_formats::FormatError),
    /// A tokenizer that another kind of file has no keys for.
    #[error("the tokenizer cannot be written as {to}: {problem}")]
    Inexpressible { to: &'static str, problem: String },
    #[error("the model has no tokenizer")]
    Missing,
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    #[error("the chat template fails: {0}; try {raw}", raw = Setting::Raw)]
    Template(String),
    #[error("the chat template has {bytes} bytes, more than the limit of {limit}")]
    TemplateSize { bytes: usize, limit: usize },
}
