//! Why an evaluation fails.

use latent_engine::EngineError;
use latent_formats::{InputError, OutputError};
use std::path::PathBuf;

/// Why an evaluation fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The model cannot run what is asked for.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// There is less text than one chunk.
    #[error(
        "the text has {tokens} tokens, fewer than a chunk of {context}: give a longer text, or a smaller --ctx-size"
    )]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        context: usize,
    },
    /// Chunks of so few tokens that none of them is counted.
    #[error("chunks of {context} tokens have no token to count: give --ctx-size 4 or more")]
    NoPositions {
        /// Tokens of a chunk.
        context: usize,
    },
    /// A file that is not one of llama.cpp's logits files, or a damaged one.
    #[error("{}: {problem}", path.display())]
    LogitsFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A logits file of a model with another vocabulary.
    #[error("{}: it is of a model with {theirs} tokens, this one has {ours}: compare models with the same tokenizer", path.display())]
    Vocabulary {
        /// The file.
        path: PathBuf,
        /// Tokens of the file's vocabulary.
        theirs: usize,
        /// Tokens of the model's.
        ours: usize,
    },
    /// Logits that are no numbers.
    #[error(
        "the logits after token {row} of chunk {chunk} are NaN or infinite: `latent verify --weights` says which weights are not finite, \
         `latent diff` where the values begin to be"
    )]
    NotFinite {
        /// The chunk, from 1.
        chunk: usize,
        /// The position within it.
        row: usize,
    },
}
