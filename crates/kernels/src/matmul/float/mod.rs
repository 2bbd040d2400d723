//! Products of f32 rows with BF16, F16 and F8_E4M3 weights in tiles of sixteen rows.
#![allow(
    unsafe_code,
    reason = "vector instructions, and addresses that the shapes checked on entry keep in bounds"
)]

mod body;
mod formats;
mod panels;
mod transposed;

use super::compiled::compiled;
use super::{MatmulArgs, MatmulFn, Scratch};
use crate::QuantizedInput;
use crate::simd::{Simd, portable};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use formats::{Bf16, F8E4M3, F16, FloatFormat};
use latent_types::{OpKind, TensorType, Tier};

/// y = x · Wᵀ.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn along<L: Simd, F: FloatFormat>(args: MatmulArgs<'_, '_>, scratch: &mut Scratch) {
    let QuantizedInput::F32(x) = args.input else { return };
    // SAFETY: the caller's promise.
    unsafe { body::multiply::<L, F>(x, args, scratch) }
}

/// y = x · W.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn transposed<L: Simd, F: FloatFormat>(args: MatmulArgs<'_, '_>, scratch: &mut Scratch) {
    let MatmulArgs { weight, input, row_ids, outputs, y } = args;
    let QuantizedInput::F32(rows) = input else { return };
    // SAFETY: the caller's promise.
    if !unsafe { transposed::transposed::<L, F>(weight, rows, row_ids, outputs.clone(), y) } {
        // rows are taken out of tiles one by one
        super::body::transposed(MatmulArgs { weight, input, row_ids, outputs, y }, scratch);
    }
}

/// The products of one format.
macro_rules! format {
    ($op:expr, $body:ident, $format:ty) => {
        [
            ($op, <$format>::TY, Tier::Portable, compiled!($body::<portable::Portable, $format>)),
            #[cfg(target_arch = "x86_64")]
            ($op, <$format>::TY, Tier::Avx2, compiled!(Avx2: $body::<avx2::Avx2<false>, $format>)),
            #[cfg(target_arch = "x86_64")]
            ($op, <$format>::TY, Tier::Avx512, compiled!(Avx512: $body::<avx512::Avx512, $format>)),
        ]
    };
}

/// Every product over tiles of floats.
pub(super) fn kernels() -> Vec<(OpKind, TensorType, Tier, MatmulFn)> {
    [
        format!(OpKind::Linear, along, Bf16),
        format!(OpKind::Linear, along, F16),
        format!(OpKind::Linear, along, F8E4M3),
        format!(OpKind::LinearT, transposed, Bf16),
        format!(OpKind::LinearT, transposed, F16),
        format!(OpKind::LinearT, transposed, F8E4M3),
    ]
    .concat()
}

/// Whether a format has such products.
pub(super) fn has(ty: TensorType) -> bool {
    matches!(ty, Bf16::TY | F16::TY | F8E4M3::TY)
}
