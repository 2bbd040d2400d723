//! Conversion errors.

use crate::quantize::QuantizeError;
use latent_formats::{FormatError, OutputError, TooManyFiles};
use latent_graph::config::InexpressibleModel;
use latent_graph::{ConfigError, GraphError};
use latent_quant::QuantError;
use latent_text::TextError;
use latent_types::{Setting, TensorType};
use std::path::PathBuf;

/// Why a model is not converted. Nothing has been written under the target's name then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    #[error("{0}")]
    Format(#[from] FormatError),
    /// Its hyper-parameters make no sense, or its architecture is not supported.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// A tensor is missing or has another shape than the hyper-parameters require.
    #[error("{0}")]
    Graph(#[from] GraphError),
    #[error("{0}")]
    Text(#[from] TextError),
    /// The other kind of file has no keys for what it does.
    #[error("{0}")]
    Inexpressible(#[from] InexpressibleModel),
    #[error("{0}")]
    Output(#[from] OutputError),
    #[error(
        "{file}: Latent does not support GGUF files of architecture {architecture:?}; llama.cpp's convert_hf_to_gguf.py may convert the model for llama.cpp"
    )]
    NoGguf { file: String, architecture: String },
    /// An adapter of another base model, or a matrix that cannot be decoded.
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Adapter { path: PathBuf, tensor: String, problem: String },
    #[error("{file}: it is {what}; give {expected}")]
    Kind { file: String, what: &'static str, expected: &'static str },
    #[error("{}: its folder {} does not exist; create it first", path.display(), folder.display())]
    NoFolder { path: PathBuf, folder: PathBuf },
    #[error("{}: it exists; {} replaces it", path.display(), Setting::Force)]
    Exists { path: PathBuf },
    #[error("{}: it is inside the model's own folder {}; choose a path outside it", path.display(), folder.display())]
    Inside { path: PathBuf, folder: PathBuf },
    /// The target's folder holds a file that would count as a part of the new model.
    #[error("{}: it contains {name}, which would become part of the new model; remove it or give another folder", path.display())]
    Leftover { path: PathBuf, name: String },
    #[error("{file}: {} unknown to the circuit: {}", counted(tensors), listed(tensors))]
    Unknown { file: String, tensors: Vec<String> },
    /// A tensor is stored in a type that cannot be decoded.
    #[error("tensor {tensor}: it is stored as {ty}, which cannot be decoded")]
    NotDecodable { tensor: String, ty: TensorType },
    /// A number is too large for the type asked for.
    #[error("tensor {tensor}: the value {value} is out of the range of {ty}; choose BF16 or F32")]
    Overflow {
        /// The tensor of the new file.
        tensor: String,
        value: f32,
        ty: TensorType,
    },
    #[error("tensor {tensor}: {error}")]
    Encode {
        /// The tensor of the new file.
        tensor: String,
        error: QuantError,
    },
    #[error("{ty} cannot be written here; supported types: {known}")]
    Type { ty: TensorType, known: String },
    #[error(transparent)]
    TooManyFiles(#[from] TooManyFiles),
    /// Its weights are not written in the types asked for.
    #[error(transparent)]
    Quantize(#[from] QuantizeError),
    #[error("no thread to encode with: {error}")]
    Thread { error: std::io::Error },
    #[error("stopped; nothing was written")]
    Stopped,
}

fn counted(tensors: &[String]) -> String {
    if tensors.len() == 1 { "a tensor is".into() } else { format!("{} tensors are", tensors.len()) }
}

/// Names that a message shows.
const SHOWN: usize = 4;

fn listed(tensors: &[String]) -> String {
    let more = if tensors.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", tensors[..tensors.len().min(SHOWN)].join(", "))
}
