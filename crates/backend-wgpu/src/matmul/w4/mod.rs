//! Kernels for 4-bit weights `[K, N]` with group scales (FP4 and INT4, the layout of Marlin's
//! callers): y = x · W.
//!
//! * `gemm`: double-buffered tiles.
//! * `fused`: few rows, with codes decoded in registers.
//! * `striped`: `gemm` over slices of K. `reduce` adds the partial sums in the order of the slices.
//! * `dequant`: weights as f32 or f16.
//! * `map_rows`: elementwise operations for callers without a model: biases, permuted columns, f16
//!   and f32.
//!
//! Inputs are f32 or f16. Sums are f32, and their order depends on shapes only. Devices may flush
//! subnormal f32 to 0, so the contribution of an E8M0 scale of 2^-127 may be missing.

mod call;
mod format;
mod shader;
mod tiles;
mod weight;

#[cfg(any(test, feature = "cases"))]
pub(crate) use call::reduce;
pub(crate) use call::{W4Inputs, dequant, fused, gemm, map_rows, striped};
pub use format::W4CodeKind;
pub(crate) use shader::W4RowShader;
pub(crate) use tiles::W4_GEMM;
pub(crate) use weight::W4Weight;
pub use weight::{GroupScales, W4Operand, W4WeightShape};

#[cfg(test)]
pub(super) use format::ScaleKind;
#[cfg(test)]
pub(super) use shader::{W4Shader, W4ShaderKind, reduce_source};
