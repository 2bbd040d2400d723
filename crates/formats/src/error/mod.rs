//! Errors of model files: each says where, what was found, and what was expected.

mod adapter;
mod four_bit;
mod gguf;
mod pack;
mod safetensors;

pub use adapter::AdapterError;
pub use four_bit::FourBitError;
pub use gguf::GgufError;
pub use pack::PackError;
pub use safetensors::SafetensorsError;

use latent_files::InputError;
use std::path::{Path, PathBuf};

/// An error of opening or reading a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    #[error("{}: {error}{}", path.display(), hint_for(error))]
    Io { path: PathBuf, error: std::io::Error },
    /// A file of the folder, other than the weights, is too large or not a regular file.
    #[error(transparent)]
    Input(#[from] InputError),
    #[error("{}: not a model file: {what}", path.display())]
    NotAModel {
        path: PathBuf,
        /// What it is instead, and what to do.
        what: String,
    },
    #[error("{}: {error}", path.display())]
    Gguf { path: PathBuf, error: GgufError },
    #[error("{}: {error}", path.display())]
    Safetensors { path: PathBuf, error: SafetensorsError },
    #[error("{}: {error}", path.display())]
    Pack { path: PathBuf, error: PackError },
    /// 4-bit weights of a model folder are malformed, or of a kind that is not supported.
    #[error("{}: {error}", path.display())]
    FourBit { path: PathBuf, error: Box<FourBitError> },
    #[error("{}: {problem}", path.display())]
    Json { path: PathBuf, problem: String },
    /// The weights of a model folder are stored in a way that is not read.
    #[error("{}: {problem}", path.display())]
    WeightFormat { path: PathBuf, problem: String },
    #[error("{}: {problem}", path.display())]
    Incomplete {
        /// The file that names them, or the folder.
        path: PathBuf,
        problem: String,
    },
    #[error("{}: {problem}", path.display())]
    Set { path: PathBuf, problem: String },
    /// A tensor cannot be cut where a partition over ranks cuts it.
    #[error("{}: tensor {tensor} cannot be split by the partition: {problem}", path.display())]
    Cut {
        path: PathBuf,
        tensor: String,
        /// Why not, and what to do.
        problem: String,
    },
    /// A tensor that others are computed from is missing or unfit.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Derived { path: PathBuf, tensor: String, problem: String },
    /// A LoRA adapter is malformed, or of a kind that is not supported.
    #[error("{}: {error}", path.display())]
    Adapter { path: PathBuf, error: Box<AdapterError> },
    /// Tensors that one of several ranks runs are in files that it does not have.
    #[error("{}: {}", path.display(), absent(files, tensor, *tensors))]
    Absent {
        path: PathBuf,
        /// Names of those files, as far as they are known.
        files: Vec<String>,
        tensor: String,
        tensors: usize,
    },
    /// A metadata key has another type or value than asked for.
    #[error("{file}: metadata key {key} is {found}, expected {expected}")]
    Key { file: String, key: String, found: String, expected: &'static str },
}

impl FormatError {
    pub(crate) fn adapter(path: &Path, error: AdapterError) -> FormatError {
        FormatError::Adapter { path: path.to_owned(), error: Box::new(error) }
    }

    /// Whether the files may be as they should be, and Latent does not read what they hold.
    pub fn is_unsupported(&self) -> bool {
        match self {
            FormatError::WeightFormat { .. } => true,
            FormatError::FourBit { error, .. } => error.is_unsupported(),
            FormatError::Safetensors { error, .. } => matches!(error, SafetensorsError::Dtype { .. }),
            _ => false,
        }
    }

    /// Whether the data of tensors, or files, are missing, and the rest can be read.
    pub fn is_incomplete(&self) -> bool {
        match self {
            FormatError::Incomplete { .. } => true,
            FormatError::Gguf { error, .. } => matches!(error, GgufError::PastEnd { .. }),
            FormatError::Safetensors { error, .. } => matches!(error, SafetensorsError::PastEnd { .. }),
            _ => false,
        }
    }
}

fn absent(files: &[String], tensor: &str, tensors: usize) -> String {
    let others = if tensors > 1 { format!(" and {} others", tensors - 1) } else { String::new() };
    let (needed, them) = match files {
        [] => ("files that are".to_owned(), "them"),
        [only] => (format!("{only}, which is"), "it"),
        all => (format!("{}, which are", all.join(", ")), "them"),
    };
    format!(
        "this rank runs tensor {tensor}{others} of {needed} not here; copy {them} to this host, into the model's folder"
    )
}

fn hint_for(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => " (check the path; -m takes a .gguf file or a model folder)",
        std::io::ErrorKind::PermissionDenied => " (check the file's permissions)",
        _ => "",
    }
}
