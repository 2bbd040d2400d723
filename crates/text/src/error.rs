//! Errors of tokenizers and chat templates.

use latent_types::Setting;
/// An error of a tokenizer or a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer whose rules are not known: text would silently be split wrongly.
    #[error("unknown {what} {found:?}; supported: {known}")]
    Unknown {
        /// Such as `tokenizer model`.
        what: &'static str,
        /// The name in the file.
        found: String,
        known: String,
    },
    /// A pre-tokenizer without rules here: text would silently be split wrongly.
    #[error(
        "unknown pre-tokenizer {found:?} in tokenizer.ggml.pre; supported: {known}. Use the original folder, \
         whose tokenizer.json holds the rules, or, if a supported one has the same rules, convert the model with {}",
        Setting::PreTokenizer
    )]
    UnknownPre {
        /// The name in the file.
        found: String,
        known: String,
    },
    /// A vocabulary that contradicts itself.
    #[error("the tokenizer is malformed: {0}")]
    Malformed(String),
    /// A component of tokenizer.json, or a value in one, that is not admitted.
    #[error("tokenizer.json: {place} {found}; accepted: {accepted}")]
    Component {
        /// Its path, such as `normalizer.normalizers[2].pattern`.
        place: String,
        found: String,
        accepted: String,
    },
    /// A text with more tokens than allowed.
    #[error("the text of {bytes} bytes has at least {tokens} tokens, more than {limit}")]
    TooLong {
        bytes: usize,
        limit: usize,
        /// A lower bound on the tokens of the text: counting stopped there.
        tokens: usize,
    },
    /// A library panicked.
    #[error("the {what} cannot be used: a library fails on it ({problem}); please report this")]
    Internal {
        /// `text`, `vocabulary`, or a file.
        what: String,
        problem: String,
    },
    /// A metadata key or file of the tokenizer cannot be read.
    #[error(transparent)]
    Format(#[from] latent_formats::FormatError),
    /// A tokenizer that another kind of file has no keys for.
    #[error("the tokenizer cannot be written as {to}: {problem}")]
    Inexpressible {
        /// `GGUF keys` or `tokenizer.json`.
        to: &'static str,
        /// Why, and what to do.
        problem: String,
    },
    /// The model has no tokenizer.
    #[error("the model has no tokenizer")]
    Missing,
    /// Text that cannot be encoded.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// A chat template that does not compile or render.
    #[error("the chat template fails: {0}; try {raw}", raw = Setting::Raw)]
    Template(String),
    /// A template that is larger than any real one.
    #[error("the chat template has {bytes} bytes, more than the limit of {limit}")]
    TemplateSize { bytes: usize, limit: usize },
}
