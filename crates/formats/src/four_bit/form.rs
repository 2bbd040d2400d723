//! Encodings of 4-bit weights in files.

use crate::tensor::TensorInfo;
use latent_types::TensorType;
use std::sync::OnceLock;

/// The block format for integers whose inputs are in order.
pub(super) fn type_of_integers(symmetric: bool, group: usize) -> TensorType {
    match symmetric {
        // A block of 32 has one scale, so it must not span two groups.
        _ if !group.is_multiple_of(TensorType::Q4_0.block_len()) => TensorType::F16,
        // Q4_0 subtracts 8 from its quants too.
        true => TensorType::Q4_0,
        // A quant minus its zero point is -15 to 15, which needs five bits.
        false => TensorType::Q5_0,
    }
}

/// Encoding of quants, scales and zero points in their tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FourBitEncoding {
    /// Integers.
    Int(IntEncoding),
    /// E2M1 with an E4M3 scale per 16 inputs and a global scale, which divides (compressed-tensors)
    /// or multiplies (ModelOpt).
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
    /// Whether inputs may belong to groups in any order (`desc_act`).
    pub(crate) ordered: bool,
}

/// The order of quants in their words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordPacking {
    /// `[inputs / 8, outputs]`: eight inputs of an output per word.
    Gptq,
    /// `[inputs, outputs / 8]`: eight outputs per word, in the order 0, 2, 4, 6, 1, 3, 5, 7 of
    /// AutoAWQ's GEMM kernel.
    Awq,
    /// `[outputs, inputs / 8]`: eight inputs per word.
    Rows,
}

/// Encoding of zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCode {
    /// Four bits, packed like the quants of other outputs.
    Nibbles,
    /// Likewise, with 0x11111111 subtracted from each word (GPTQ's first format; `gptq_v2` has
    /// `Nibbles`).
    LessOne,
    /// A signed byte: the zero point minus 8.
    Bytes,
}

/// A 4-bit weight of a checkpoint with its stored tensors.
pub(crate) struct FourBitWeight {
    pub(crate) form: FourBitEncoding,
    /// The block format of its rows.
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
    /// The weight's shape as stored in the file.
    pub(crate) stated_shape: Option<TensorInfo>,
    /// Scales of inputs, which are not used.
    pub(crate) unused: Option<TensorInfo>,
    // Finding it reads all scales of the weight, and every decoder of the weight needs it.
    /// The exponent of the power of two by which scales are multiplied, once known.
    pub(crate) shift: OnceLock<i32>,
}

impl FourBitWeight {
    /// The stored tensors that are read with the rows.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        [&self.quants, &self.scales].into_iter().chain(&self.zeros).chain(&self.order)
    }

    /// Whether consecutive rows are contiguous in the file. GPTQ and AWQ store the transposed
    /// matrix.
    pub(crate) fn has_rows(&self) -> bool {
        !matches!(
            self.form,
            FourBitEncoding::Int(IntEncoding { packing: WordPacking::Gptq | WordPacking::Awq, .. })
        )
    }
}
