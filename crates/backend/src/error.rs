//! Backend errors.

use crate::RankError;
use latent_formats::{FormatError, OutputError};
use latent_graph::{ConfigError, GraphError};
use latent_types::TensorType;

/// Errors of loading a model into a backend, or of running a step there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The backend cannot run an operation of the plan: a bug in Latent, not in the file.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A tensor that the plan uses is not in the file.
    #[error("{file}: tensor {tensor} is missing")]
    MissingTensor { file: String, tensor: String },
    /// A tensor is stored in a format that cannot be decoded.
    #[error(
        "{file}: tensor {tensor} has type {ty}, which is not supported; convert the model to another type"
    )]
    NotDecodable { file: String, tensor: String, ty: TensorType },
    #[error("{file}: {error}")]
    Decode { file: String, error: latent_quant::QuantError },
    /// A packed file's tensor is not stored as the model needs it.
    #[error("{file}: tensor {tensor} {problem}; pack the model again with `latent pack`")]
    Packed { file: String, tensor: String, problem: String },
    #[error("{}: {error}{hint}", path.display())]
    PackIo { path: std::path::PathBuf, error: std::io::Error, hint: String },
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The operating system, or the device's driver, refused memory or a thread.
    #[error("{what}: {error}")]
    System {
        what: &'static str,
        /// The operating system's or driver's error.
        error: std::io::Error,
    },
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// The device is lost or does not respond. It is unusable until it is opened and the model
    /// loaded again.
    #[error(transparent)]
    Lost(Box<dyn std::error::Error + Send + Sync>),
    #[error("{0}")]
    Unsupported(String),
    /// A KV store of another backend, or of another model.
    #[error("this KV cache belongs to another backend or model: use a cache created by this model")]
    ForeignStore,
    #[error(transparent)]
    Rank(#[from] RankError),
    /// The step was cancelled. Its rows are not in the KV cache.
    #[error("stopped")]
    Cancelled,
}
