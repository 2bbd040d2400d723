//! Errors of the 4-bit weights of a GPTQ, AWQ, compressed-tensors or ModelOpt checkpoint.

use latent_types::TensorType;

/// An error of a checkpoint's 4-bit weights, or of the settings that config.json has for them.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FourBitError {
    /// Another program's quantization.
    #[error(
        "quantization_config: quant_method {method:?} is not supported; fp8, fbgemm_fp8, gptq, awq, compressed-tensors and modelopt (nvfp4, fp8) are"
    )]
    Method { method: String },
    /// A setting that no code here reads.
    #[error("quantization_config: {key} is {found}; {expected}")]
    Setting { key: String, found: String, expected: &'static str },
    /// Packed weights, and no word about how they were packed.
    #[error(
        "tensor {tensor} is packed, but quantization_config in config.json says nothing about such weights"
    )]
    NoSettings { tensor: String },
    /// A weight that stands in the file twice.
    #[error("the file contains both {tensor} and {plain}, two forms of one weight")]
    Both { tensor: String, plain: String },
    /// A tensor that belongs to a packed one is not there.
    #[error("tensor {tensor} has no {missing}; the file is incomplete")]
    Companion {
        tensor: String,
        /// The name of what is missing.
        missing: String,
    },
    /// Elements of another type.
    #[error("tensor {tensor} is {found}, expected {expected}")]
    Dtype {
        tensor: String,
        found: TensorType,
        /// The types that it can have.
        expected: &'static str,
    },
    /// Another shape than the packed weights imply.
    #[error("tensor {tensor} has shape {found:?}, expected {expected:?} for {of}")]
    Shape {
        tensor: String,
        found: Vec<usize>,
        /// The shape that was expected.
        expected: Vec<usize>,
        of: String,
    },
    /// The stored `weight_shape` contradicts the packed quants.
    #[error(
        "tensor {tensor} says that the weight has shape {found:?}, but {packed} holds {expected:?} of 4 bits"
    )]
    Stated {
        tensor: String,
        found: Vec<usize>,
        /// The shape that the packed quants imply.
        expected: Vec<usize>,
        packed: String,
    },
    /// A row does not consist of whole words or groups.
    #[error("tensor {tensor}: {inputs} inputs are not divisible by {by}, {what}")]
    Indivisible {
        tensor: String,
        /// Elements of a row.
        inputs: usize,
        /// What they should be divisible by.
        by: usize,
        /// What that number is.
        what: &'static str,
    },
    /// The tensors are of a kind that config.json does not have.
    #[error("tensor {tensor} has {found}; config_groups has {have}")]
    NoGroup {
        tensor: String,
        /// Bits, group and symmetry as the shapes say.
        found: String,
        have: String,
    },
    /// A group that does not exist.
    #[error("tensor {tensor}: column {column} belongs to group {found}, of {groups} groups")]
    GroupIndex {
        tensor: String,
        column: usize,
        found: i32,
        /// How many there are.
        groups: usize,
    },
    /// An input order (`g_idx`), although config.json says `desc_act: false`.
    #[error(
        "tensor {tensor}: column {column} belongs to group {found}, expected {expected}, since desc_act is false in config.json"
    )]
    Order {
        tensor: String,
        column: usize,
        found: i32,
        /// The group by its place.
        expected: usize,
    },
    /// A zero point that symmetric quantization, or four bits, cannot have.
    #[error("tensor {tensor}: the zero point of output {row}, group {group} is {found}, expected {expected}")]
    ZeroPoint {
        tensor: String,
        row: usize,
        group: usize,
        found: i32,
        /// What it can be.
        expected: &'static str,
    },
    /// A scale that is not a positive number.
    #[error("tensor {tensor}: scale {index} is {found}, expected {expected}")]
    Scale {
        tensor: String,
        /// Its place in the tensor.
        index: usize,
        found: String,
        /// What it can be.
        expected: &'static str,
    },
}

impl FourBitError {
    /// Whether the tensors may be as they should be, of a kind that is not read.
    pub(crate) fn is_unsupported(&self) -> bool {
        use FourBitError::{Method, NoGroup, Setting};
        matches!(self, Method { .. } | Setting { .. } | NoGroup { .. })
    }
}
