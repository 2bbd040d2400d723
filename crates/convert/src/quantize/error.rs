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
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Quant(#[from] QuantError),
    #[error("{file}: {problem}")]
    Source {
        file: String,
        /// What it is, and what to do.
        problem: String,
    },
    #[error("unknown file type {0:?}; expected one of {list}", list = Mix::names().collect::<Vec<_>>().join(", "))]
    UnknownMix(String),
    #[error("invalid regular expression {pattern:?}: {problem}")]
    Pattern { pattern: String, problem: String },
    /// A type that was asked for by name cannot be written.
    #[error("tensors cannot be written as {0}; supported types: {list}", list = writable())]
    NotWritable(TensorType),
    /// A type that was asked for by name does not fit a tensor.
    #[error("tensor {tensor}: row length {columns} is not a multiple of the {ty} block size ({block}); choose another type for it", block = ty.block_len())]
    Width { tensor: String, columns: usize, ty: TensorType },
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
    #[error("tensor {tensor} is {ty}, which cannot be read as weights")]
    NotReadable { tensor: String, ty: TensorType },
    /// The type needs importances, and there are none for the tensor.
    #[error(
        "{ty} requires an importance matrix for tensor {tensor}: set {}, or choose another type",
        Setting::Imatrix
    )]
    NeedsImportance { tensor: String, ty: TensorType },
    #[error("{}: no importance matrix: {problem}", path.display())]
    Importance { path: PathBuf, problem: String },
    /// One row of importances for all heads or experts of a tensor.
    #[error("{}: it has one row of importances for all {matrices} matrices of {tensor}, but each matrix needs its own; \
         create the file again with `latent imatrix` or a newer llama-imatrix", path.display())]
    SharedImportance { path: PathBuf, tensor: String, matrices: usize },
    #[error("{}: no Hessians to quantize by: {problem}", path.display())]
    Hessian { path: PathBuf, problem: String },
    #[error("{0} has no GPTQ; choose one of {list}", list = crate::quantize::gptq::gptq_type_names())]
    NoGptq(TensorType),
    #[error("the damping is {0}; it must be a number above 0, such as 0.01")]
    Damping(f64),
    #[error("{}: tensor {tensor}: {problem}", path.display())]
    Merge { path: PathBuf, tensor: String, problem: String },
    #[error("{}: it is of another model: {problem}", path.display())]
    OtherModel { path: PathBuf, problem: String },
    #[error(
        "tensor {tensor}: row {row} has weights that are NaN or infinite (`latent verify` counts them: {})",
        Setting::Weights
    )]
    NotFinite {
        tensor: String,
        /// The row, counted through all matrices.
        row: usize,
    },
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
    #[error(transparent)]
    TooManyFiles(#[from] TooManyFiles),
    #[error(
        "{}: {error}; {} holds {written} bytes of it; run the same command again to resume, or delete that file", target.display(), part.display()
    )]
    Unfinished {
        /// The file that was to be written.
        target: PathBuf,
        part: PathBuf,
        written: u64,
        error: std::io::Error,
    },
    #[error(
        "{} is too small: the smallest file that can run well has {} (importances allow smaller types: {})", format_bytes(*target), format_bytes(*least), Setting::Imatrix
    )]
    TooSmall { target: u64, least: u64 },
    #[error("stopped; nothing was written")]
    Interrupted,
    #[error("stopped; {} holds {written} bytes; run the same command again to resume", part.display())]
    Stopped { part: PathBuf, written: u64 },
}

fn writable() -> String {
    let types = TensorType::all().filter(|ty| latent_quant::can_quantize(*ty) && ty.ggml_id().is_some());
    types.map(TensorType::name).collect::<Vec<_>>().join(", ")
}
