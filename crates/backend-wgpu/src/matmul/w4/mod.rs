//! The entries for 4-bit weights `[K, N]` with group scales (FP4 and INT4, as Marlin's callers have them): y = x · W.
//!
//! * `gemm`: tiles whose next strip is fetched while the present one is multiplied.
//! * `fused`: few rows, codes decoded in registers.
//! * `striped`: `gemm` over slices of K, whose partial sums `reduce` adds in the order of the slices.
//! * `dequant`: weights as f32 or f16.
//! * `map_rows`: what callers without a model need around products: biases, columns in another order, f16 and f32.
//!
//! Inputs are f32 or f16. Sums are f32, and their order depends on shapes alone. Devices may take subnormal f32 for 0, so that what an E8M0 scale of 2^-127 contributes may be missing.

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
