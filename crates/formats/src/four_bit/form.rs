//! The forms that a 4-bit weight can have in a file.

use crate::tensor::TensorInfo;
use latent_types::TensorType;
use std::sync::OnceLock;

/// The type of integers whose inputs stand in order.
pub(super) fn type_of_integers(symmetric: bool, group: usize) -> TensorType {
    match symmetric {
        _ if !group.is_multiple_of(TensorType::Q4_0.block_len()) => TensorType::F16,
        true => TensorType::Q4_0,
        false => TensorType::Q5_0,
    }
}

/// How quants, scales and zero points lie in their tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FourBitEncoding {
    /// Integers.
    Int(IntEncoding),
    /// E2M1 with an E4M3 scale per 16 inputs and a number for all, which divides (compressed-tensors) or multiplies (ModelOpt).
    Nvfp4 { divides: bool },
    /// E2M1 with an E8M0 scale per 32 inputs.
    Mxfp4,
}

/// Unsigned 4-bit integers with a scale, and a zero point, per group of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntEncoding {
    pub(crate) packing: WordPacking,
    /// Inputs per group.
    pub(crate) group: usize,
    /// Whether every zero point is 8.
    pub(crate) symmetric: bool,
    pub(crate) zeros: ZeroCode,
    /// Whether inputs may belong to groups in any order.
    pub(crate) ordered: bool,
}

/// The order of quants in their words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordPacking {
    /// `[inputs / 8, outputs]`: eight inputs of an output per word.
    Gptq,
    /// `[inputs, outputs / 8]`: eight outputs per word, in the order 0, 2, 4, 6, 1, 3, 5, 7.
    Awq,
    /// `[outputs, inputs / 8]`: eight inputs per word.
    Rows,
}

/// How a zero point is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCode {
    /// As four bits, packed like the quants of other outputs.
    Nibbles,
    /// Likewise, after 0x11111111 was subtracted from each word (GPTQ before its second version).
    LessOne,
    /// As a signed byte, 8 less.
    Bytes,
}

/// A 4-bit weight of a checkpoint, and the tensors of the file that hold it.
pub(crate) struct FourBitWeight {
    pub(crate) form: FourBitEncoding,
    /// The format that it is shown in.
    pub(crate) ty: TensorType,
    /// Outputs and inputs.
    pub(crate) shape: [usize; 2],
    pub(crate) quants: TensorInfo,
    pub(crate) scales: TensorInfo,
    pub(crate) zeros: Option<TensorInfo>,
    /// The group of each input.
    pub(crate) order: Option<TensorInfo>,
    /// A divisor or factor of all scales.
    pub(crate) global: Option<TensorInfo>,
    /// The weight's shape, as the file states it.
    pub(crate) stated_shape: Option<TensorInfo>,
    /// Scales of inputs, which nothing reads.
    pub(crate) unused: Option<TensorInfo>,
    /// The power of two that scales are multiplied by, once it is known.
    pub(crate) shift: OnceLock<i32>,
}

impl FourBitWeight {
    /// The tensors of the file that are read with its rows.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        [&self.quants, &self.scales].into_iter().chain(&self.zeros).chain(&self.order)
    }

    /// Whether consecutive rows are consecutive in the file.
    pub(crate) fn has_rows(&self) -> bool {
        !matches!(
            self.form,
            FourBitEncoding::Int(IntEncoding { packing: WordPacking::Gptq | WordPacking::Awq, .. })
        )
    }
}
