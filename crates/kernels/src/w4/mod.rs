//! GEMM with 4-bit weights `[K, N]` and group scales (W4A16), in the layout of Marlin: y = x · W.
//!
//! Weights are words of eight codes along K ([`W4Matrix`]). A kernel reads f32 rows, panels of
//! integers, or bf16 pairs ([`W4Form`]). Sums are f32, and scales are applied to the sum of a
//! group, so that no weight is rounded.
//!
//! * `integers`, `fused` (for groups that cut words): codes are decoded in registers. For few rows.
//!   Integers are used for many rows too if their instructions are faster than f32's.
//! * `gemm`: many rows. A strip of weights is decoded once into the cache; the words of the strip
//!   below are prefetched while it is multiplied.
//! * striped: [`W4Stripes`] orders work units of output tiles and slices of K; `reduce` adds the
//!   partial sums in order.
//! * `decode`: weights as f32 or f16.
//!
//! The portable, AVX2 and AVX-512 kernels are one body over `nibbles::Nibbles`; `pairs` is
//! AVX512-BF16, `tiles` AMX.

mod decode;
mod dequant;
mod fused;
mod gemm;
mod input;
mod integers;
mod matmul;
mod matrix;
mod nibbles;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod part;
mod reduce;
mod scales;
mod stripes;
mod table;
mod tiers;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use dequant::w4_dequant_f16;
pub use input::{W4Form, W4Input};
pub use matmul::{W4Args, W4MatmulFn, W4Scratch};
pub use matrix::{W4Codes, W4Matrix, W4Shape};
pub use reduce::{w4_reduce, w4_zero};
pub use scales::W4Scales;
pub use stripes::{W4Stripes, W4Unit};
pub use table::{W4DequantFn, W4Entry, W4Fn, W4Kernel};
pub use tiers::w4_table;
