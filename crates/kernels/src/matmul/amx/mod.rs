//! GEMM on AMX: bf16 inputs × quantized weights in tiles, dequantized to bf16, with f32
//! accumulators.
//!
//! **Why bf16.** Rounding weights and inputs to bf16 adds an error of 0.2 % (root mean square over
//! 2048 random terms). int8 inputs with a scale per 32 elements, which the other ISAs use, add 0.5
//! %. int8 weights and inputs with a scale per 256, as AMX tiles of int8 would need them, add 0.9 %
//! (`tests`). In addition, bf16 is a single path for all formats.
//!
//! **The order of a sum** is that of its inputs, 32 per k-step. Accumulators are stored and loaded
//! exactly between two blocks. So the bits depend on the operands alone, not on the batch size or
//! the range of outputs.

mod dequant_block;
mod gemm;
#[cfg(test)]
mod tests;

use super::args::MatmulFn;
use super::quantized::formats::*;
use latent_types::TensorType;

/// The kernels of all quantized formats.
pub(super) fn kernels() -> Vec<(TensorType, MatmulFn)> {
    macro_rules! formats {
        ($($format:ident)*) => {
            vec![$((<$format as QuantFormat>::TY, gemm::multiply::<$format> as MatmulFn)),*]
        };
    }
    formats!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4 Nvfp4)
}
