//! Quantization errors.

use crate::quantize::mix::Mix;
use latent_formats::{FormatError, InputError, OutputError, TooManyFiles};
use latent_quant::QuantError;
use latent_types::{Setting, TensorType, format_bytes};
use std::path::PathBuf;

/// Why a model was not quantized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// The model cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The target cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file of importances cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// An encoder refused a row.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The model is not a GGUF file.
    #[error("{file}: {problem}")]
    Source {
        file: String,
        /// What it is, and what to do.
        problem: String,
    },
    /// Unknown name of a mix.
    #[error("unknown file type {0:?}; expected one of {list}", list = Mix::names().collect::<Vec<_>>().join(", "))]
    UnknownMix(String),
    /// A pattern of `--tensor-type` is malformed.
    #[error("invalid regular expression {pattern:?}: {problem}")]
    Pattern { pattern: String, problem: String },
    /// A type that was asked for by name cannot be written.
    #[error("tensors cannot be written as {0}; supported types: {list}", list = writable())]
    NotWritable(TensorType),
    /// A type that was asked for by name does not fit a tensor.
    #[error("tensor {tensor}: row length {columns} is not a multiple of the {ty} block size ({block}); choose another type for it", block = ty.block_len())]
    Width { tensor: String, columns: usize, ty: TensorType },
    /// The tensor is quantized already.
    #[error(
        "tensor {tensor} is already quantized ({from}), and loses more quality as {to}: use a file with F32, F16 or BF16 weights, or set {}",
        Setting::AllowRequantize
    )]
    Requantize {
        tensor: String,
        from: TensorType,
        /// The type that it was to get.
        to: TensorType,
    },
    /// The type of a tensor has no known bits.
    #[error("tensor {tensor} is {ty}, which cannot be read as weights")]
    NotReadable { tensor: String, ty: TensorType },
    /// The type needs importances, and there are none for the tensor.
    #[error(
        "{ty} requires an importance matrix for tensor {tensor}: set {}, or choose another type",
        Setting::Imatrix
    )]
    NeedsImportance { tensor: String, ty: TensorType },
    /// A file of importances is malformed.
    #[error("{}: no importance matrix: {problem}", path.display())]
    Importance { path: PathBuf, problem: String },
    /// One row of importances for all heads or experts of a tensor.
    #[error("{}: it has one row of importances for all {matrices} matrices of {tensor}, but each matrix needs its own; \
         create the file again with `latent imatrix` or a newer llama-imatrix", path.display())]
    SharedImportance {
        /// The file of importances.
        path: PathBuf,
        tensor: String,
        /// Its matrices: heads or experts.
        matrices: usize,
    },
    /// The importances belong to another model.
    #[error("{}: it is of another model: {problem}", path.display())]
    OtherModel {
        /// The file of importances.
        path: PathBuf,
        problem: String,
    },
    /// A weight is NaN or infinite.
    #[error(
        "tensor {tensor}: row {row} has weights that are NaN or infinite (`latent verify` counts them: {})",
        Setting::Weights
    )]
    NotFinite {
        tensor: String,
        /// The row, counted through all matrices.
        row: usize,
    },
    /// A weight is too large for its new type.
    #[error(
        "tensor {tensor}: row {row} has the value {value} in column {column}, which {ty} cannot hold; choose BF16 or F32"
    )]
    Overflow {
        tensor: String,
        /// The row, counted through all matrices.
        row: usize,
        column: usize,
        value: f32,
        ty: TensorType,
    },
    /// The weights of a model that is converted cannot be read.
    #[error(transparent)]
    Weights(Box<dyn std::error::Error + Send + Sync>),
    /// The files would be too small.
    #[error(transparent)]
    TooManyFiles(#[from] TooManyFiles),
    /// The file could not be written to its end.
    #[error(
        "{}: {error}; {} holds {written} bytes of it; run the same command again to resume, or delete that file", target.display(), part.display()
    )]
    Unfinished {
        /// The file that was to be written.
        target: PathBuf,
        part: PathBuf,
        /// Its size in bytes.
        written: u64,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// A size that no types reach.
    #[error(
        "{} is too small: the smallest file that can run well has {} (importances allow smaller types: {})", format_bytes(*target), format_bytes(*least), Setting::Imatrix
    )]
    TooSmall {
        /// Bytes that were asked for.
        target: u64,
        /// Bytes of the smallest file.
        least: u64,
    },
    /// The caller asked to stop before anything was written.
    #[error("stopped; nothing was written")]
    Interrupted,
    /// The caller asked to stop.
    #[error("stopped; {} holds {written} bytes; run the same command again to resume", part.display())]
    Stopped {
        part: PathBuf,
        /// Its size in bytes.
        written: u64,
    },
}

fn writable() -> String {
    let types = TensorType::all().filter(|ty| latent_quant::can_quantize(*ty) && ty.ggml_id().is_some());
    types.map(TensorType::name).collect::<Vec<_>>().join(", ")
}
