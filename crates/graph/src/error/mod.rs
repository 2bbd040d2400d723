//! Errors between config and plan.

mod circuit;

pub use circuit::{CacheError, CircuitError};

use crate::partition::PartitionError;
use latent_types::{CacheType, Setting, TensorType};

/// An error of building the circuit, the IR or the plan of a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    #[error("unknown circuit {name:?}; expected one of {}", known.join(", "))]
    NoCircuit { name: String, known: Vec<String> },
    /// A circuit is invalid, by itself or with this config.
    #[error("circuit {circuit}: {problem}")]
    Circuit { circuit: String, problem: Box<CircuitError> },
    /// A tensor that the config requires is not in the file.
    #[error("{file}: tensor {tensor} is missing: {hint}")]
    MissingTensor { file: String, tensor: String, hint: String },
    /// A part of a model starts with a layer that attends to the selection of an earlier layer,
    /// which another rank or device runs.
    #[error(
        "layer {layer} attends to tokens that an earlier layer on another rank or device selects ({value}): \
         start each part with a layer that has its own indexer, or set {}",
        Setting::SparseAttention.to("off")
    )]
    OtherSpan {
        layer: usize,
        /// The value, as the circuit calls it.
        value: String,
    },
    /// The MTP layer is requested for drafts, but the model has none.
    #[error("the model cannot draft tokens by itself: {what}; omit {}", Setting::Draft.to("mtp"))]
    NoMtp { what: String },
    #[error(
        "{file}: tensor {tensor} has shape {found:?}, but the model's hyper-parameters require {expected:?} (outermost first)"
    )]
    Shape {
        file: String,
        tensor: String,
        found: Vec<usize>,
        /// The shape that it must have.
        expected: Vec<usize>,
    },
    /// The experts of one layer are stored in different formats.
    #[error(
        "{file}: tensor {tensor} is stored as {ty}, but the first of its kind as {first}; all experts of a layer must agree"
    )]
    MixedTypes {
        file: String,
        tensor: String,
        ty: TensorType,
        /// The format of the first expert.
        first: TensorType,
    },
    /// An adapter changes a tensor in an unsupported way.
    #[error("{file}: the adapter for {tensor}: {problem}")]
    Adapter { file: String, tensor: String, problem: String },
    /// An adapter of kv_b with a cache of expanded keys and values.
    #[error("an adapter of kv_b needs a cache of latents, not of expanded keys and values")]
    ExpandedAdapter,
    /// A plan for more rows per step than [`MAX_STEP_ROWS`](crate::MAX_STEP_ROWS).
    #[error("a step of {rows} rows exceeds the maximum of {most}")]
    Rows { rows: usize, most: usize },
    #[error("unknown pass {name:?}; the passes are, in order, {}", known.join(", "))]
    NoPass { name: String, known: Vec<String> },
    #[error("no kernel for {asked}; {there}")]
    NoKernel { asked: String, there: String },
    #[error("kernels {first} and {second} both match {asked}")]
    AmbiguousKernel { asked: String, first: String, second: String },
    /// A cache of expanded keys and values in a type that can hold latents only.
    #[error("a cache of {cache} supports latents only: store expanded keys and values as f32, f16 or bf16")]
    CacheType { cache: CacheType },
    /// The partition is malformed or does not fit the model.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A pass found an IR that no circuit can produce: a bug in Latent, not an error of the file.
    #[error("internal error in pass {pass}: {problem} (please report this)")]
    Internal { pass: &'static str, problem: String },
}
