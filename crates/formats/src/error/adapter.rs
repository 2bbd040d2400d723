//! Errors of LoRA adapters.

use latent_types::TensorType;

/// An error of a LoRA adapter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A GGUF file of another type, or another file.
    #[error("not a LoRA adapter: {0}")]
    NotAnAdapter(String),
    /// An unsupported feature of the adapter.
    #[error("{what} of an adapter is not supported: {advice}")]
    Unsupported { what: String, advice: &'static str },
    /// A tensor that is neither A nor B of a pair.
    #[error("tensor {tensor} is not a matrix of a LoRA adapter: {advice}")]
    Tensor { tensor: String, advice: &'static str },
    /// A matrix that occurs with and without PEFT's prefix.
    #[error(
        "tensor {tensor} occurs twice, with and without the prefix base_model.model.: remove one of them"
    )]
    Duplicate { tensor: String },
    #[error("the adapter for {target} is missing matrix {missing}: the file is incomplete")]
    Unpaired { target: String, missing: &'static str },
    #[error("tensor {tensor} has type {ty}: adapter matrices must be f32, f16, bf16 or q8_0")]
    Type { tensor: String, ty: TensorType },
    #[error(
        "the adapter for {target} has matrices A {a:?} and B {b:?}: expected A [rank, inputs] and B \
         [outputs, rank]"
    )]
    Ranks { target: String, a: Vec<usize>, b: Vec<usize> },
    #[error("the adapter for {target} has rank {found}, but adapter_config.json says {stated}")]
    OtherRank { target: String, found: usize, stated: u64 },
    #[error("the adapter has no matrices")]
    Empty,
    #[error(
        "the adapter is for architecture {adapter}, but the model is {base}: use the adapter's base model"
    )]
    Architecture { adapter: String, base: String },
    #[error("{key} is {found}, expected {expected}")]
    Key { key: String, found: String, expected: &'static str },
    #[error("more than {0} adapters: use fewer")]
    TooMany(usize),
    #[error("scale {0}: expected a finite number")]
    Scale(f32),
}
