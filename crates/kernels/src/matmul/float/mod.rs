//! f32 input rows × BF16, F16 and F8_E4M3 weights in tiles of sixteen rows.
#![allow(
    unsafe_code,
    reason = "vector instructions, and addresses that the shapes checked on entry keep in bounds"
)]

mod formats;
mod groups;
mod matmul;
mod panels;
mod tile;
mod transposed;

use super::args::{MatmulArgs, MatmulFn};
use super::compiled::compiled;
use super::scratch::MatmulScratch;
use crate::QuantizedInput;
use crate::simd::{Simd, portable};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use formats::{Bf16Format, F8E4M3Format, F16Format, FloatFormat};
use latent_types::{OpKind, TensorType, Tier};

/// y = x · Wᵀ.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
unsafe fn linear<L: Simd, F: FloatFormat>(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    let QuantizedInput::F32(x) = args.input else { return };
    // SAFETY: the ISA by this function's contract.
    unsafe { matmul::multiply::<L, F>(x, args, scratch) }
}

/// y = x · W.
///
/// # Safety
/// The caller is compiled for the ISA of `L`, and the CPU has it.
#[inline(always)]
unsafe fn transposed<L: Simd, F: FloatFormat>(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::F32(rows) = input else { return };
    // The fallback decodes row by row: for slices that are not whole tiles, and for weights with
    // NaN.
    // SAFETY: the ISA by this function's contract.
    if !unsafe { transposed::transposed::<L, F>(weight, rows, row_ids, outputs.clone(), y) } {
        super::dequantized::transposed(MatmulArgs { weight, input, row_ids, outputs, y }, scratch);
    }
}

/// The kernels of one operation and format.
macro_rules! format {
    ($op:expr, $body:ident, $format:ty) => {
        [
            ($op, <$format>::TY, Tier::Portable, compiled!($body::<portable::PortableSimd, $format>)),
            #[cfg(target_arch = "x86_64")]
            ($op, <$format>::TY, Tier::Avx2, compiled!(Avx2: $body::<avx2::Avx2<false>, $format>)),
            #[cfg(target_arch = "x86_64")]
            ($op, <$format>::TY, Tier::Avx512, compiled!(Avx512: $body::<avx512::Avx512, $format>)),
        ]
    };
}

/// The kernels of all float formats.
pub(super) fn kernels() -> Vec<(OpKind, TensorType, Tier, MatmulFn)> {
    [
        format!(OpKind::Linear, linear, Bf16Format),
        format!(OpKind::Linear, linear, F16Format),
        format!(OpKind::Linear, linear, F8E4M3Format),
        format!(OpKind::LinearT, transposed, Bf16Format),
        format!(OpKind::LinearT, transposed, F16Format),
        format!(OpKind::LinearT, transposed, F8E4M3Format),
    ]
    .concat()
}

/// Whether a format has kernels here.
pub(super) fn has(ty: TensorType) -> bool {
    matches!(ty, Bf16Format::TY | F16Format::TY | F8E4M3Format::TY)
}
