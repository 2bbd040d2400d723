//! Products of 8-bit rows with weights in tiles of sixteen rows.
#![allow(
    unsafe_code,
    reason = "vector instructions, and addresses that the shapes checked on entry keep in bounds"
)]

mod body;
pub(crate) mod formats;
mod gemm;
mod gemv;
mod microkernel;
pub(crate) mod operands;
mod prefetch;
mod prefetch_queue;

use super::MatmulFn;
use super::compiled::compiled;
#[cfg(target_arch = "x86_64")]
use super::{MatmulArgs, Scratch};
use crate::simd::portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use formats::*;
use latent_types::{TensorType, Tier};

/// The products of one format: portable, AVX2, AVX-512 with 8-bit inputs, and the tile unit with inputs of bf16.
macro_rules! format {
    ($format:ident) => {{
        #[cfg(target_arch = "x86_64")]
        fn avx2(args: MatmulArgs<'_, '_>, scratch: &mut Scratch) {
            let kernel = if crate::isa::Avx2Vnni::detect().is_some() && !super::without_vnni() {
                compiled!(Avx2Vnni: body::multiply::<avx2::Avx2<true>, $format>)
            } else {
                compiled!(Avx2: body::multiply::<avx2::Avx2<false>, $format>)
            };
            kernel(args, scratch);
        }

        let ty = <$format as Format>::TY;
        [
            (ty, Tier::Portable, compiled!(body::multiply::<portable::Portable, $format>)),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Avx2, avx2 as MatmulFn),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Avx512, compiled!(Avx512: body::multiply::<avx512::Avx512, $format>)),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Amx, crate::bf16::multiply::<$format> as MatmulFn),
        ]
    }};
}

/// Every product over tiles.
pub(super) fn kernels() -> Vec<(TensorType, Tier, MatmulFn)> {
    [
        format!(Q4_0),
        format!(Q4_1),
        format!(Q5_0),
        format!(Q5_1),
        format!(Q8_0),
        format!(Q2K),
        format!(Q3K),
        format!(Q4K),
        format!(Q5K),
        format!(Q6K),
        format!(Iq4Nl),
        format!(Iq4Xs),
        format!(Mxfp4),
        format!(Nvfp4),
    ]
    .concat()
}
