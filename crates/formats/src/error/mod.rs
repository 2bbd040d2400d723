//! Errors of model files. Each says where the problem is, what was found, and what was expected.

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
        /// The type of the file, and advice.
        what: String,
    },
    #[error("{}: {error}", path.display())]
    Gguf { path: PathBuf, error: GgufError },
    #[error("{}: {error}", path.display())]
    Safetensors { path: PathBuf, error: SafetensorsError },
    #[error("{}: {error}", path.display())]
    Pack { path: PathBuf, error: PackError },
    /// 4-bit weights of a model folder are malformed or unsupported.
    #[error("{}: {error}", path.display())]
    FourBit { path: PathBuf, error: Box<FourBitError> },
    #[error("{}: {problem}", path.display())]
    Json { path: PathBuf, problem: String },
    /// The weights of a model folder have an unsupported format.
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
        /// The reason, and advice.
        problem: String,
    },
    /// The source of a derived tensor is missing or unsuitable.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Derived { path: PathBuf, tensor: String, problem: String },
    /// A LoRA adapter is malformed or unsupported.
    #[error("{}: {error}", path.display())]
    Adapter { path: PathBuf, error: Box<AdapterError> },
    /// Tensors of a rank are in files that are missing on its host.
    #[error("{}: {}", path.display(), absent(files, tensor, *tensors))]
    Absent {
        path: PathBuf,
        /// Known names of those files.
        files: Vec<String>,
        tensor: String,
        tensors: usize,
    },
    /// A metadata key has another type or value than expected.
    #[error("{file}: metadata key {key} is {found}, expected {expected}")]
    Key { file: String, key: String, found: String, expected: &'static str },
}

impl FormatError {
    pub(crate) fn adapter(path: &Path, error: AdapterError) -> FormatError {
        FormatError::Adapter { path: path.to_owned(), error: Box::new(error) }
    }

    /// Whether the files may be valid, but of an unsupported kind.
    pub fn is_unsupported(&self) -> bool {
        match self {
            FormatError::WeightFormat { .. } => true,
            FormatError::FourBit { error, .. } => error.is_unsupported(),
            FormatError::Safetensors { error, .. } => matches!(error, SafetensorsError::Dtype { .. }),
            _ => false,
        }
    }

    /// Whether only tensor data or files are missing.
    pub fn is_incomplete(&self) -> bool {
        match self {
            FormatError::Incomplete { .. } => true,
            FormatError::Gguf { error, .. } => matches!(error, GgufError::PastEnd { .. }),
            FormatError::Safetensors { error, .. } => matches!(error, SafetensorsError::PastEnd { .. }),
            _ => false,
        }
    }
}

// The user copies files from other hosts, so the text names all of them.
fn absent(files: &[String], tensor: &str, tensors: usize) -> String {
    let others = if tensors > 1 { format!(" and {} others", tensors - 1) } else { String::new() };
    let (needed, them) = match files {
        [] => ("files that are".to_owned(), "them"),
        [only] => (format!("{only}, which is"), "it"),
        all => (format!("{}, which are", all.join(", ")), "them"),
    };
    format!(
        "this rank runs tensor {tensor}{others} of {needed} missing on this host; copy {them} into the \
         model's folder"
    )
}

fn hint_for(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => " (check the path; -m takes a .gguf file or a model folder)",
        std::io::ErrorKind::PermissionDenied => " (check the file's permissions)",
        _ => "",
    }
}
