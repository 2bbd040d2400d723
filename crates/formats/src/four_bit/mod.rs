//! 4-bit weights of GPTQ, AWQ and compressed-tensors checkpoints. Such a weight is several tensors in the file: packed quants, scales, zero
//! points, the order of its inputs. A checkpoint shows them as one tensor in a block format, whose rows are put together while they are read.
//!
//! | in the file | shown as | |
//! |---|---|---|
//! | int4 with the zero point 8, whole blocks of 32 inputs in a group | Q4_0 | exact with f16 scales |
//! | int4 with zero points, likewise | Q5_0: quant − zero point + 16 | exact with f16 scales |
//! | int4 with inputs in another order (`g_idx`), or groups of other sizes | F16 | each weight rounded once |
//! | NVFP4, MXFP4 of compressed-tensors | NVFP4, MXFP4 | exact |
//!
//! Scales of BF16 or F32 are multiplied by a power of two where f16 cannot hold them otherwise; a tensor of one element, `weight_scale_inv`,
//! takes it back. BF16 scales are then exact if the largest and the smallest of a matrix are less than 2^31 apart, F32 scales rounded to f16.

mod blocks;
mod decoder;
mod find;
mod form;
mod numbers;
mod replace;
mod settings;

pub(crate) use decoder::FourBitDecoder;
pub(crate) use find::{HeaderTensor, TensorLookup, factor_name, find};
pub(crate) use form::FourBitWeight;
pub(crate) use replace::{VirtualTensor, replace};
pub(crate) use settings::FourBitSettings;
