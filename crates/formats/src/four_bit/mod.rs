//! 4-bit weights of GPTQ, AWQ, compressed-tensors and ModelOpt checkpoints.
//!
//! Such a weight is several tensors in the file: packed quants, scales, zero points and the order
//! of inputs. A checkpoint shows them as one tensor in a block format, so that the loader and the
//! kernels need to know nothing of these formats. Its rows are assembled while they are read.
//!
//! | in the file | shown as | |
//! |---|---|---|
//! | int4 with the zero point 8, whole blocks of 32 inputs in a group | Q4_0 | exact with f16 scales |
//! | int4 with zero points, likewise | Q5_0: quant − zero point + 16 | exact with f16 scales |
//! | int4 with inputs in another order (`g_idx`), or groups of other sizes | F16 | each weight rounded once |
//! | NVFP4, MXFP4 of compressed-tensors | NVFP4, MXFP4 | exact |
//!
//! Q4_1 would round the product of scale and zero point. Q5_0 is exact, because the difference of
//! two 4-bit numbers has five bits.
//!
//! BF16 and F32 scales that f16 cannot represent are multiplied by a power of two. A tensor of one
//! element, `weight_scale_inv`, reverts that. BF16 scales are then exact if the largest and the
//! smallest of a matrix are less than 2^31 apart. F32 scales are rounded to f16.

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
