//! What can go wrong in the engine.

use crate::cache::{CacheFileError, CacheFull};
use latent_formats::{FormatError, OutputError};
use latent_graph::{ConfigError, GraphError};
use latent_types::TensorType;

/// An error of loading or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The file cannot be opened or is malformed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Its hyper-parameters are missing, lie, or are not supported.
    #[error(transparent)]
    ModelConfig(#[from] ConfigError),
    /// Its tensors do not fill the circuit, or no kernel fits.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The circuit, the plans or the file's tensors break a rule of the audit.
    #[error("{file}: {}", found(findings))]
    Audit {
        /// The file.
        file: String,
        /// What was found: at least one.
        findings: Vec<latent_graph::audit::Finding>,
    },
    /// A tensor that the plan uses is not in the file.
    #[error("{file}: tensor {tensor} is missing")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is stored in a format that cannot be decoded.
    #[error(
        "{file}: tensor {tensor} is stored as {ty}, which Latent cannot compute with; convert the model to another type"
    )]
    NotDecodable {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its format.
        ty: TensorType,
    },
    /// A tensor's bytes do not decode.
    #[error("{file}: {error}")]
    Decode {
        /// The file.
        file: String,
        /// Why.
        error: latent_quant::QuantError,
    },
    /// A packed file's tensor does not lie as the model needs it.
    #[error("{file}: tensor {tensor} {problem}; pack the model again with `latent pack`")]
    Packed {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        problem: String,
    },
    /// A packed file cannot be written.
    #[error("{}: {error}{hint}", path.display())]
    PackIo {
        /// The file.
        path: std::path::PathBuf,
        /// What the operating system says.
        error: std::io::Error,
        /// What to do.
        hint: String,
    },
    /// A file is not written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Loading would not fit in memory.
    #[error("{0}")]
    Memory(crate::memory::OutOfMemory),
    /// The operating system refused memory or a thread.
    #[error("{what}: {error}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        error: std::io::Error,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {token} at position {position} is out of range: the vocabulary has {vocab} tokens")]
    Token {
        /// The id.
        token: u32,
        /// Where it stands.
        position: usize,
        /// Tokens in the vocabulary.
        vocab: usize,
    },
    /// A step without rows, or with more than the engine was made for.
    #[error("a step of {rows} rows is outside 1 to {max_batch_tokens}")]
    Rows {
        /// Rows asked for.
        rows: usize,
        /// Most rows of a step.
        max_batch_tokens: usize,
    },
    /// The cache has no room.
    #[error(transparent)]
    CacheFull(#[from] CacheFull),
    /// The cache has no room for some items of a step.
    #[error("{} of {count} sequences of this step do not fit ({}): {full}", items.len(), list(items))]
    NotAdmitted {
        /// Their places among the items. A step without them finds room.
        items: Vec<usize>,
        /// Items of the step.
        count: usize,
        /// What the first of them lacks.
        full: CacheFull,
    },
    /// A sequence is used with another engine than the one that has run it.
    #[error("{}another engine has run this sequence and keeps its cache: use it with that one", place(*item))]
    ForeignSequence {
        /// Its place among the items of a step, where it is one.
        item: Option<usize>,
    },
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

/// The place of an item in a step.
fn place(item: Option<usize>) -> String {
    item.map_or_else(String::new, |item| format!("item {item}: "))
}

/// The places of some items.
fn list(items: &[usize]) -> String {
    let items: Vec<String> = items.iter().map(|item| format!("item {item}")).collect();
    items.join(", ")
}

/// The first finding of an audit, and how many there are beside it.
fn found(findings: &[latent_graph::audit::Finding]) -> String {
    let first = findings.first().map(ToString::to_string).unwrap_or_default();
    match findings.len() {
        0 | 1 => first,
        n => format!("{first} (and {} more: `latent verify` lists them)", n - 1),
    }
}
