//! int8 input rows × quantized weights in tiles of sixteen rows.
//!
//! `small_batch` dispatches by batch size: one row to `gemv`, up to eight rows to kernels that
//! dequantize a tile in registers, many rows to `gemm`, which unpacks tiles to memory once and
//! multiplies them in `microkernel`. Formats are in `formats`.
#![allow(
    unsafe_code,
    reason = "vector instructions, and addresses that the shapes checked on entry keep in bounds"
)]

mod dots;
pub(super) mod formats;
mod gemm;
mod gemv;
mod microkernel;
mod microkernel_block;
mod narrow;
#[cfg(target_arch = "x86_64")]
mod narrow_avx2;
pub(super) mod operands;
mod prefetch;
mod prefetch_queue;
mod small_batch;
mod sub_block;

#[cfg(target_arch = "x86_64")]
use super::args::MatmulArgs;
use super::args::MatmulFn;
use super::compiled::compiled;
#[cfg(target_arch = "x86_64")]
use super::scratch::MatmulScratch;
use crate::simd::portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2, avx512};
use formats::*;
use latent_types::{TensorType, Tier};

/// The kernels of one format.
macro_rules! format {
    ($format:ident) => {{
        #[cfg(target_arch = "x86_64")]
        fn avx2(args: MatmulArgs<'_, '_>, scratch: &mut MatmulScratch) {
            // Chosen per call: `allow_avx_vnni` may change it after the table was built.
            let kernel = if crate::isa::Avx2Vnni::detect().is_some() && crate::matmul::vnni::avx_vnni_allowed() {
                compiled!(Avx2Vnni: small_batch::multiply::<avx2::Avx2<true>, $format>)
            } else {
                compiled!(Avx2: small_batch::multiply::<avx2::Avx2<false>, $format>)
            };
            kernel(args, scratch);
        }

        let ty = <$format as QuantFormat>::TY;
        [
            (ty, Tier::Portable, compiled!(small_batch::multiply::<portable::PortableSimd, $format>)),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Avx2, avx2 as MatmulFn),
            #[cfg(target_arch = "x86_64")]
            (ty, Tier::Avx512, compiled!(Avx512: small_batch::multiply::<avx512::Avx512, $format>)),
        ]
    }};
}

/// The kernels of all quantized formats.
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
