//! Errors of conversion and quantization.

use latent_formats::{FormatError, InputError, OutputError, TooManyFiles};
use latent_graph::config::InexpressibleModel;
use latent_graph::{ConfigError, GraphError};
use latent_quant::QuantError;
use latent_text::TextError;
use latent_types::{Setting, TensorType, format_bytes};
use std::path::PathBuf;

/// Error of a conversion or quantization. An existing target stays unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    #[error("{0}")]
    Format(#[from] FormatError),
    /// The hyper-parameters are inconsistent, or the architecture is not supported.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// A tensor is missing or has another shape than the hyper-parameters require.
    #[error("{0}")]
    Graph(#[from] GraphError),
    #[error("{0}")]
    Text(#[from] TextError),
    /// The other kind of file has no keys to describe the model.
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
    #[error("{file}: it is {what}, expected {expected}")]
    Kind { file: String, what: &'static str, expected: &'static str },
    #[error("{}: its folder {} does not exist; create it first", path.display(), folder.display())]
    NoFolder { path: PathBuf, folder: PathBuf },
    #[error("{}: it exists; {} replaces it", path.display(), Setting::Force)]
    Exists { path: PathBuf },
    #[error("{}: it is inside the model's own folder {}; choose a path outside it", path.display(), folder.display())]
    Inside { path: PathBuf, folder: PathBuf },
    /// The target's folder contains a file that would become part of the new model.
    #[error("{}: it contains {name}, which would become part of the new model; remove it or give another folder", path.display())]
    Leftover { path: PathBuf, name: String },
    #[error("{file}: the circuit does not use {}: {}", counted(tensors), listed(tensors))]
    Unknown { file: String, tensors: Vec<String> },
    /// A tensor is stored in a type that cannot be decoded.
    #[error("tensor {tensor}: it is stored as {ty}, which cannot be decoded")]
    NotDecodable { tensor: String, ty: TensorType },
    /// A number is too large for the chosen type.
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
    #[error("cannot start an encoding thread: {error}")]
    Thread { error: std::io::Error },
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Quant(#[from] QuantError),
    #[error("{file}: {problem}")]
    Source {
        file: String,
        /// The problem and the remedy.
        problem: String,
    },
    #[error("unknown file type {0:?}; expected one of {list}", list = crate::quantize::Mix::names().collect::<Vec<_>>().join(", "))]
    UnknownMix(String),
    #[error("invalid regular expression {pattern:?}: {problem}")]
    Pattern { pattern: String, problem: String },
    /// A type set by name cannot be written.
    #[error("tensors cannot be written as {0}; supported types: {list}", list = writable())]
    NotWritable(TensorType),
    /// A type set by name does not fit a tensor.
    #[error("tensor {tensor}: row length {columns} is not a multiple of the {ty} block size ({block}); choose another type for it", block = ty.block_len())]
    Width { tensor: String, columns: usize, ty: TensorType },
    #[error(
        "tensor {tensor} is already quantized ({from}), so quantizing it to {to} loses more quality: use a \
         file with F32, F16 or BF16 weights, or set {}",
        Setting::AllowRequantize
    )]
    Requantize {
        tensor: String,
        from: TensorType,
        /// The chosen type.
        to: TensorType,
    },
    /// The type needs importances, and the tensor has none.
    #[error(
        "{ty} requires an importance matrix for tensor {tensor}: set {}, or choose another type",
        Setting::Imatrix
    )]
    NeedsImportance { tensor: String, ty: TensorType },
    #[error("{}: not an importance matrix: {problem}", path.display())]
    Importance { path: PathBuf, problem: String },
    /// The file has a single row of importances for all heads or experts of a tensor.
    #[error("{}: it has one row of importances for all {matrices} matrices of {tensor}, but each matrix needs its own; \
         create the file again with `latent imatrix` or a newer llama-imatrix", path.display())]
    SharedImportance { path: PathBuf, tensor: String, matrices: usize },
    #[error("{}: no Hessians for GPTQ: {problem}", path.display())]
    Hessian { path: PathBuf, problem: String },
    #[error("GPTQ does not support {0}; choose one of {list}", list = crate::quantize::gptq_type_names())]
    NoGptq(TensorType),
    #[error("the damping is {0}, expected a number above 0, such as 0.01")]
    Damping(f64),
    #[error("{}: it belongs to another model: {problem}", path.display())]
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
    RowOverflow {
        tensor: String,
        /// The row, counted through all matrices.
        row: usize,
        column: usize,
        value: f32,
        ty: TensorType,
    },
    #[error(
        "{}: {error}; {} holds {written} bytes of it; run the same command again to resume, or delete that file", target.display(), part.display()
    )]
    Unfinished {
        /// The target.
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

fn counted(tensors: &[String]) -> String {
    if tensors.len() == 1 { "a tensor".into() } else { format!("{} tensors", tensors.len()) }
}

/// Maximum number of names in a message.
const SHOWN: usize = 4;

fn listed(tensors: &[String]) -> String {
    let more = if tensors.len() > SHOWN { ", …" } else { "" };
    format!("{}{more}", tensors[..tensors.len().min(SHOWN)].join(", "))
}

fn writable() -> String {
    let types = TensorType::all().filter(|ty| latent_quant::can_quantize(*ty) && ty.ggml_id().is_some());
    types.map(TensorType::name).collect::<Vec<_>>().join(", ")
}
