//! What can go wrong with tokenizers and chat templates.

/// An error of a tokenizer or a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer whose rules are not known: text would be cut wrongly without a sign of it.
    #[error("the {what} {found:?} is not known; known are {known}")]
    Unknown {
        /// `tokenizer model` or `pre-tokenizer`.
        what: &'static str,
        /// What the file says.
        found: String,
        /// What is known.
        known: String,
    },
    /// A vocabulary that contradicts itself.
    #[error("the tokenizer is malformed: {0}")]
    Malformed(String),
    /// A component of tokenizer.json, or a value in one, that is not admitted.
    #[error("tokenizer.json: {place} {found}; accepted: {accepted}")]
    Component {
        /// Where it stands, such as `normalizer.normalizers[2].pattern`.
        place: String,
        /// What stands there.
        found: String,
        /// What may stand there.
        accepted: String,
    },
    /// A text of more tokens than there is room for.
    #[error("the text of {bytes} bytes has more than {limit} tokens")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens that there is room for.
        limit: usize,
    },
    /// A library gave up in the middle of its work.
    #[error("the {what} cannot be used: a library fails on it ({problem}); please report this")]
    Internal {
        /// `text`, `vocabulary`, or a file.
        what: String,
        /// Its message.
        problem: String,
    },
    /// A metadata key or file of the tokenizer cannot be read.
    #[error(transparent)]
    Format(#[from] latent_formats::FormatError),
    /// There is no tokenizer.
    #[error("the model has no tokenizer; give token ids with --tokens")]
    Missing,
    /// Text that cannot be encoded.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// A chat template that does not compile or render.
    #[error("the chat template fails: {0}; try --raw")]
    Template(String),
    /// A template that is larger than any real one.
    #[error("the chat template has {bytes} bytes, more than the limit of {limit}")]
    TemplateSize {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}
