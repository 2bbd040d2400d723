//! bf16 dot products: GEMM by AMX tiles, and what attention by AMX or AVX512-BF16 is built from.
//!
//! AMX multiplies a tile of sixteen rows × 32 inputs by a tile of 32 inputs × sixteen outputs, and adds the
//! 256 f32 sums to an accumulator tile: 8192 multiply-adds per instruction. Weights are dequantized from
//! their packed form ([`latent_quant::tiles`]) to bf16 blocks in tile order, some inputs × some outputs at a
//! time, small enough to stay in the L2 cache while all rows are multiplied with them.
//!
//! * `detect`: whether the CPU has AMX, and the system's permission to use it.
//! * `dot`: the instructions, AMX tiles or AVX512-BF16 vectors, in the shapes of GEMM and attention.
//! * `layout`: packs other factors into the panels of [`bf16_layout`](crate::bf16_layout).
//! * `dequant_block`: weights of every packed format as bf16.
//! * `gemm`: the loop over blocks of weights, rows and inputs.
//!
//! **Why bf16.** Rounding weights and inputs to bf16 costs less than 8-bit inputs already do: 0.2 % of a
//! result (root mean square over 2048 random terms), against 0.5 % for 8-bit inputs with a scale per 32, and
//! 0.9 % for 8-bit weights and inputs with a scale per 256, as int8 tiles would need them (`tests`). It is
//! one path for every format, and a result is one chain of additions, whatever the block sizes.
//!
//! **The order of a sum** is the order of its inputs, 32 per k-step: accumulators that leave the tiles
//! between blocks come back unchanged. So the bits depend on the operands alone, neither on the number of
//! rows nor on where a share of outputs ends.

mod dequant_block;
mod detect;
pub(crate) mod dot;
mod gemm;
pub(crate) mod layout;
#[cfg(test)]
mod tests;

pub(crate) use detect::found;
pub use detect::{assume_amx, assumed};
pub(crate) use dot::{bf16_peak, integer_peak};
pub(crate) use gemm::{Buffers, multiply};

/// Whether attention uses AVX512-BF16 on this CPU. AVX512-FP16 is as fast and rounds less, where the CPU has
/// it.
pub(crate) fn has_bf16_vectors() -> bool {
    crate::isa::Avx512Bf16::detect().is_some() && !crate::features().avx512_fp16
}

/// Fewest rows of a call for AMX: with fewer, dequantizing weights costs more than a whole matmul with 8-bit
/// inputs.
pub(crate) const MIN_ROWS: usize = 16;
