//! Errors of the engine.

use crate::cache::{CacheFileError, CacheFull, KvError, StatesFull};
use crate::seq_error::SeqError;
use latent_backend::{BackendError, RankError};
use latent_formats::FormatError;
use latent_graph::{ConfigError, GraphError};
use latent_types::Setting;

/// An error of loading or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum EngineError {
    /// The file cannot be opened or is malformed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Its hyper-parameters are missing, lie, or are not supported.
    #[error(transparent)]
    ModelConfig(#[from] ConfigError),
    /// Its tensors or hyper-parameters are incomplete, and so are its files on the ranks that share it.
    #[error("{error}; no rank has {files}: copy to each rank the files with its own tensors")]
    FilesOfNobody { error: Box<EngineError>, files: String },
    /// Its tensors do not fill the circuit, or no kernel fits.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The circuit, the plans or the file's tensors break a rule of the audit.
    #[error("{file}: {}", found(findings))]
    Audit {
        file: String,
        /// What was found: at least one.
        findings: Vec<latent_graph::audit::Finding>,
    },
    /// Loading would not fit in memory.
    #[error("{0}")]
    Memory(crate::memory::OutOfMemory),
    /// A part of the model is larger than a device gives out in one piece: the context or the steps are too long for it.
    #[error("{0}")]
    Piece(crate::pieces::LargePiece),
    /// The backend cannot load the model or run a step.
    #[error(transparent)]
    Backend(BackendError),
    /// A step without rows, or with more than the engine was made for.
    #[error("a step of {rows} rows is outside 1 to {max_batch_tokens}")]
    Rows { rows: usize, max_batch_tokens: usize },
    /// One sequence of a step cannot run.
    #[error("{}{error}", place(*index))]
    Sequence { index: Option<usize>, error: SeqError },
    /// The KV cache has no room.
    #[error(transparent)]
    CacheFull(#[from] CacheFull),
    /// No slot of recurrent state is free.
    #[error(transparent)]
    StatesFull(#[from] StatesFull),
    /// A context shift of a model with recurrent layers.
    #[error(
        "this model has recurrent layers, whose state cannot forget tokens, so its context cannot be shifted; use a larger {}, or omit {}",
        Setting::Context,
        Setting::Shift
    )]
    NoContextShift,
    /// A stretch of rows that a sequence does not have.
    #[error("rows {}..{} are not a stretch of the sequence, which has {rows} rows", stretch.start, stretch.end)]
    Stretch { stretch: std::ops::Range<usize>, rows: usize },
    /// A processor of the answer's logits cannot go on: see [`LogitsProcessor::failure`](crate::LogitsProcessor::failure).
    #[error("{0}")]
    Constraint(String),
    /// Another engine has run the sequence and keeps its blocks.
    #[error("another engine has run this sequence and keeps its cache: use it with that one")]
    ForeignSequence,
    /// A panic in the code of one answer: its sampling, its [`LogitsProcessor`](crate::LogitsProcessor)s, its reader.
    #[error("a panic in the code of this request: {0}")]
    Panicked(String),
    /// A saved sequence cannot be written or read.
    #[error(transparent)]
    CacheFile(#[from] CacheFileError),
    /// The logits hold no number to choose from.
    #[error("{0}")]
    Sampling(String),
    /// Settings that do not go together, or that this machine or model cannot serve.
    #[error("{0}")]
    Options(String),
    /// Stopped by the caller.
    #[error("stopped")]
    Stopped,
}

impl EngineError {
    /// Whether the device is gone, or does not answer: the model must be loaded again, there or elsewhere.
    pub fn is_lost(&self) -> bool {
        matches!(self, EngineError::Backend(BackendError::Lost(_)))
    }

    /// Whether another rank is not there any more since it has ended as it should.
    pub fn is_of_ended_rank(&self) -> bool {
        matches!(self, EngineError::Backend(BackendError::Rank(RankError::Ended { .. })))
    }
}

/// Which input of a step.
fn place(index: Option<usize>) -> String {
    index.map_or_else(String::new, |index| format!("sequence {index} of the step: "))
}

impl From<BackendError> for EngineError {
    fn from(error: BackendError) -> EngineError {
        match error {
            BackendError::Cancelled => EngineError::Stopped,
            BackendError::Unsupported(problem) => EngineError::Options(problem),
            BackendError::Format(error) => EngineError::Format(error),
            BackendError::Graph(error) => EngineError::Graph(error),
            BackendError::Config(error) => EngineError::ModelConfig(error),
            other => EngineError::Backend(other),
        }
    }
}

impl From<KvError> for EngineError {
    fn from(error: KvError) -> EngineError {
        match error {
            KvError::Full(full) => EngineError::CacheFull(full),
            KvError::States(full) => EngineError::StatesFull(full),
            KvError::Backend(error) => error.into(),
        }
    }
}

/// The first finding of an audit, and the number of further ones.
fn found(findings: &[latent_graph::audit::Finding]) -> String {
    let first = findings.first().map(ToString::to_string).unwrap_or_default();
    match findings.len() {
        0 | 1 => first,
        n => format!("{first} (and {} more: `latent verify` lists them)", n - 1),
    }
}
