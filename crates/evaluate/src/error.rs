//! Evaluation errors.

use latent_engine::EngineError;
use latent_formats::{FormatError, InputError, OutputError};
use latent_types::Setting;
use std::path::PathBuf;

/// Why an evaluation fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The model cannot run what is asked for.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A weight of a model cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A file cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A text cannot be tokenized.
    #[error(transparent)]
    Text(#[from] latent_text::TextError),
    /// A line of a file of questions that is wrong.
    #[error("{}, line {line}: {problem}", path.display())]
    Line {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A file without anything in it.
    #[error("{}: the file is empty: it needs one JSON object per line", path.display())]
    Empty { path: PathBuf },
    /// A model without routed experts.
    #[error("the model has no routed experts, and so no router statistics")]
    NoRouter,
    /// Two files without a tensor of the same name and shape.
    #[error(
        "{file} and {base} have no tensor of the same name and shape: give two GGUF files, or two folders, of one model"
    )]
    NothingInCommon {
        file: String,
        /// What it was to be compared with.
        base: String,
    },
    /// The probability of an ending of a multiple choice is not finite.
    #[error(
        "line {line}: the logits of an ending are NaN or infinite: `latent verify` says which weights are not finite ({})",
        Setting::Weights
    )]
    NoProbability {
        /// The line of the file.
        line: usize,
    },
    /// There is less text than one chunk.
    #[error(
        "the text has {tokens} tokens, fewer than a chunk of {context}: give a longer text, or a smaller {}",
        Setting::Context
    )]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        context: usize,
    },
    /// Chunks of so few tokens that none of them is counted.
    #[error("chunks of {context} tokens have no token to count: give {} or more", Setting::Context.to(4))]
    NoPositions {
        /// Tokens of a chunk.
        context: usize,
    },
    /// A file that is not one of llama.cpp's logits files, or a damaged one.
    #[error("{}: {problem}", path.display())]
    LogitsFile {
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A logits file of a model with another vocabulary.
    #[error("{}: it is of a model with {theirs} tokens, this one has {ours}: compare models with the same tokenizer", path.display())]
    Vocabulary {
        path: PathBuf,
        /// Tokens of the file's vocabulary.
        theirs: usize,
        /// Tokens of the model's.
        ours: usize,
    },
    /// Logits that are not finite.
    #[error(
        "the logits after token {row} of chunk {chunk} are NaN or infinite: `latent verify` says which weights are not finite ({}), \
         `latent diff` where the values begin to be",
        Setting::Weights
    )]
    NotFinite {
        /// The chunk, from 1.
        chunk: usize,
        /// The position within it.
        row: usize,
    },
}
