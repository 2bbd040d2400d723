//! Evaluation errors.

use latent_engine::EngineError;
use latent_formats::{FormatError, InputError, OutputError};
use latent_types::Setting;
use std::path::PathBuf;

/// Errors of evaluations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Text(#[from] latent_text::TextError),
    /// An invalid line in a file of questions.
    #[error("{}, line {line}: {problem}", path.display())]
    Line { path: PathBuf, line: usize, problem: String },
    #[error("{}: the file is empty: it needs one JSON object per line", path.display())]
    Empty { path: PathBuf },
    #[error("the model has no routed experts, so it has no router statistics")]
    NoRouter,
    /// Two files without a common tensor of the same name and shape.
    #[error(
        "{file} and {base} have no tensor with the same name and shape: use two GGUF files, or two folders, \
         of one model"
    )]
    NothingInCommon {
        file: String,
        /// The file to compare with.
        base: String,
    },
    /// The probability of an ending is not finite.
    #[error(
        "line {line}: the logits of an ending are NaN or infinite: `latent verify` shows which weights are \
         not finite ({})",
        Setting::Weights
    )]
    NoProbability { line: usize },
    #[error(
        "the text has {tokens} tokens, fewer than a chunk of {context}: use a longer text, or a smaller {}",
        Setting::Context
    )]
    TooShort { tokens: usize, context: usize },
    /// Chunks too short for a scored token.
    #[error("chunks of {context} tokens have no token to count: use {} or more", Setting::Context.to(4))]
    NoPositions { context: usize },
    /// Not a logits file of llama.cpp, or a damaged one.
    #[error("{}: {problem}", path.display())]
    LogitsFile { path: PathBuf, problem: String },
    #[error("{}: it is of a model with {theirs} tokens, but this one has {ours}: compare models with the \
             same tokenizer", path.display())]
    Vocabulary { path: PathBuf, theirs: usize, ours: usize },
    #[error(
        "the logits after token {row} of chunk {chunk} are NaN or infinite: `latent verify` shows which \
         weights are not finite ({}), `latent diff` where the first such values occur",
        Setting::Weights
    )]
    NotFinite { chunk: usize, row: usize },
}
