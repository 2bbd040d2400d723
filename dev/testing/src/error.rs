//! Errors of writing models.

use crate::shapes::shapes;
use latent_formats::OutputError;
use latent_graph::GraphError;
use latent_graph::config::InexpressibleModel;
use latent_types::TensorType;

/// Why a model cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestingError {
    /// The shape is not known.
    #[error("unknown shape {shape:?}; expected one of {}", shapes().collect::<Vec<_>>().join(", "))]
    UnknownShape {
        /// The name asked for.
        shape: String,
    },
    /// The type is not known or cannot be encoded.
    #[error("weights cannot be written as {kind:?}; types are {known}, Q4_K_M, Q4_0_M")]
    UnknownKind {
        kind: String,
        /// Types that can be written.
        known: String,
    },
    /// safetensors has no dtype for the type.
    #[error("safetensors does not support {kind}; a folder takes F32, F16, BF16 or F8_E4M3")]
    NoFolder { kind: TensorType },
    /// A rule for single tensors that does not parse.
    #[error("{word:?}: expected PATTERN=TYPE, such as ffn_down_exps=Q6_K, with a type that can be written")]
    TypeRule { word: String },
    /// Numbers that cannot be encoded.
    #[error("tensor {tensor}: {error}")]
    Encode { tensor: String, error: latent_quant::QuantError },
    /// No layers, or more than the format allows.
    #[error("{layers} layers: expected 1 to 512")]
    Layers { layers: usize },
    /// The file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// GGUF files have no keys for the shape.
    #[error(transparent)]
    Inexpressible(#[from] InexpressibleModel),
    /// The circuit of the shape is invalid.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl TestingError {
    pub(crate) fn unknown_kind(kind: &str) -> TestingError {
        let known = latent_quant::encodable().map(TensorType::name).collect::<Vec<_>>().join(", ");
        TestingError::UnknownKind { kind: kind.to_owned(), known }
    }
}
