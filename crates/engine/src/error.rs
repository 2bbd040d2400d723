//! Errors of the engine.

use crate::cache::{CacheFileError, CacheFull, KvError, StatesFull};
use crate::seq_error::SeqError;
use latent_backend::{BackendError, RankError};
use latent_formats::FormatError;
use latent_graph::{ConfigError, GraphError};
use latent_types::Setting;

/// Errors of loading or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum EngineError {
    /// The file cannot be opened or is malformed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Hyper-parameters are missing, inconsistent or not supported.
    #[error(transparent)]
    ModelConfig(#[from] ConfigError),
    /// Tensors or hyper-parameters are missing, and no rank has some of the model's files.
    #[error("{error}; no rank has {files}: copy to each rank the files that contain its tensors")]
    FilesOfNobody { error: Box<EngineError>, files: String },
    /// The tensors do not match the circuit, or an operation has no kernel.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The circuit, the plans or the file's tensors break a rule of the audit.
    #[error("{file}: {}", found(findings))]
    Audit {
        file: String,
        /// At least one finding.
        findings: Vec<latent_graph::audit::Finding>,
    },
    /// The model does not fit into memory.
    #[error("{0}")]
    Memory(crate::memory::OutOfMemory),
    /// The KV cache of a layer, or a value of a step, exceeds the maximum buffer size of a device.
    /// A smaller context or smaller steps fit.
    #[error("{0}")]
    Piece(crate::pieces::LargePiece),
    /// The backend cannot load the model or run a step.
    #[error(transparent)]
    Backend(BackendError),
    /// A step without rows, or with more than the maximum batch size.
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
        "context shift is not supported for models with recurrent layers, whose state cannot forget tokens; \
         use a larger {}, or omit {}",
        Setting::Context,
        Setting::Shift
    )]
    NoContextShift,
    /// A range of rows that the sequence does not have.
    #[error("rows {}..{} are out of range: the sequence has {rows} rows", stretch.start, stretch.end)]
    Stretch { stretch: std::ops::Range<usize>, rows: usize },
    /// A logits processor cannot continue. See
    /// [`LogitsProcessor::failure`](crate::LogitsProcessor::failure).
    #[error("{0}")]
    Constraint(String),
    /// Another engine has run the sequence and keeps its blocks.
    #[error("this sequence belongs to another engine, which has its cache: use it with that engine")]
    ForeignSequence,
    /// A panic in the code of one answer: its sampler, its
    /// [`LogitsProcessor`](crate::LogitsProcessor)s, its listener.
    #[error("the code of this request panicked: {0}")]
    Panicked(String),
    /// A saved sequence cannot be written or read.
    #[error(transparent)]
    CacheFile(#[from] CacheFileError),
    /// No token can be chosen from the logits.
    #[error("{0}")]
    Sampling(String),
    /// Options that contradict each other, or that this machine or model does not support.
    #[error("{0}")]
    Options(String),
    /// Stopped by the caller.
    #[error("stopped")]
    Stopped,
}

impl EngineError {
    /// Whether the device is lost or does not respond. The model must be loaded again, on this or
    /// another device.
    pub fn is_lost(&self) -> bool {
        matches!(self, EngineError::Backend(BackendError::Lost(_)))
    }

    /// Whether another rank has ended regularly.
    pub fn is_of_ended_rank(&self) -> bool {
        matches!(self, EngineError::Backend(BackendError::Rank(RankError::Ended { .. })))
    }
}

/// The prefix of an error about one input of a step.
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
