//! Matmuls of input rows with weights: GEMV for decode, GEMM for prefill.
//!
//! There are four families, by layout and type of the weight:
//!
//! * `dequantized`: weights in rows, any format. Each row is dequantized to f32 and multiplied with
//!   every input row.
//! * `quantized`: quantized weights in tiles × int8 inputs, in integer dot products
//!   ([`gemv`](quantized), small batches and GEMM).
//! * `float`: BF16, F16 and F8_E4M3 weights in tiles × f32 inputs.
//! * `amx`: quantized weights in tiles, dequantized to bf16 blocks × bf16 inputs, for prefill on
//!   AMX.
//!
//! Bodies are written once over [`Simd`](crate::simd::Simd) and compiled for each ISA (`compiled`).
//! All ISAs use the same sixteen lanes, so they compute the same bits. `float` is the exception: it
//! uses FMA, which the portable tier lacks.

#[cfg(target_arch = "x86_64")]
mod amx;
mod args;
mod compiled;
mod dequantized;
mod float;
mod quantized;
mod scratch;
mod tiers;
mod vnni;

pub use args::{MatmulArgs, MatmulFn};
pub use scratch::MatmulScratch;
pub(crate) use tiers::kernels;
pub use vnni::allow_avx_vnni;
