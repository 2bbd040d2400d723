//! Errors of the 4-bit weights of a GPTQ, AWQ, compressed-tensors or ModelOpt checkpoint.

use latent_types::TensorType;

/// An error of a checkpoint's 4-bit weights, or of their settings in config.json.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FourBitError {
    /// Another program's quantization.
    #[error(
        "quantization_config: quant_method {method:?} is not supported; fp8, fbgemm_fp8, gptq, awq, compressed-tensors and modelopt (nvfp4, fp8) are"
    )]
    Method { method: String },
    /// An unsupported setting.
    #[error("quantization_config: {key} is {found}; {expected}")]
    Setting { key: String, found: String, expected: &'static str },
    /// Packed weights without settings.
    #[error(
        "tensor {tensor} is packed, but quantization_config in config.json does not describe such weights"
    )]
    NoSettings { tensor: String },
    /// A weight that the file contains twice.
    #[error("the file contains both {tensor} and {plain}, two forms of one weight")]
    Both { tensor: String, plain: String },
    /// A companion tensor of a packed one is missing.
    #[error("tensor {tensor} has no {missing}: the file is incomplete")]
    Companion { tensor: String, missing: String },
    /// Elements of another type.
    #[error("tensor {tensor} is {found}, expected {expected}")]
    Dtype { tensor: String, found: TensorType, expected: &'static str },
    /// Another shape than the packed weights imply.
    #[error("tensor {tensor} has shape {found:?}, expected {expected:?} for {of}")]
    Shape { tensor: String, found: Vec<usize>, expected: Vec<usize>, of: String },
    /// The stored `weight_shape` contradicts the packed quants.
    #[error("tensor {tensor} gives the weight shape {found:?}, but {packed} holds {expected:?} of 4 bits")]
    Stated {
        tensor: String,
        found: Vec<usize>,
        /// The shape that the packed quants imply.
        expected: Vec<usize>,
        packed: String,
    },
    /// A row does not consist of whole words or groups.
    #[error("tensor {tensor}: {inputs} inputs are not a multiple of {by}, {what}")]
    Indivisible {
        tensor: String,
        /// Elements of a row.
        inputs: usize,
        /// The required divisor.
        by: usize,
        /// Meaning of the divisor.
        what: &'static str,
    },
    /// The tensors are of a kind that config.json does not announce.
    #[error("tensor {tensor} has {found}, but config_groups has {have}")]
    NoGroup {
        tensor: String,
        /// Bits, group and symmetry by the shapes.
        found: String,
        have: String,
    },
    /// A group that does not exist.
    #[error("tensor {tensor}: column {column} belongs to group {found}, of {groups} groups")]
    GroupIndex { tensor: String, column: usize, found: i32, groups: usize },
    /// An input order (`g_idx`), although config.json says `desc_act: false`.
    #[error(
        "tensor {tensor}: column {column} belongs to group {found}, expected {expected}, since desc_act is false in config.json"
    )]
    Order {
        tensor: String,
        column: usize,
        found: i32,
        /// The group of the column's position.
        expected: usize,
    },
    /// A zero point that symmetric quantization, or four bits, cannot have.
    #[error("tensor {tensor}: the zero point of output {row}, group {group} is {found}, expected {expected}")]
    ZeroPoint { tensor: String, row: usize, group: usize, found: i32, expected: &'static str },
    /// A scale that is not a positive number.
    #[error("tensor {tensor}: scale {index} is {found}, expected {expected}")]
    Scale { tensor: String, index: usize, found: String, expected: &'static str },
}

impl FourBitError {
    /// Whether the tensors may be valid, but of an unsupported kind.
    pub(crate) fn is_unsupported(&self) -> bool {
        use FourBitError::{Method, NoGroup, Setting};
        matches!(self, Method { .. } | Setting { .. } | NoGroup { .. })
    }
}
