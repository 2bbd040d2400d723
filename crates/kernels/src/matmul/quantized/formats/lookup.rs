//! Formats whose 4-bit quants index a table of values: IQ4_NL, IQ4_XS, MXFP4 and NVFP4.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "addresses lie inside block `b`, which the tile has by the contract of `QuantFormat`"
)]

use super::format::*;
use crate::simd::Simd;
use latent_quant::{e2m1, iq4_nl, mxfp4, nvfp4};
use latent_types::TensorType;

pub(crate) struct Iq4Nl;
impl QuantFormat for Iq4Nl {
    const TY: TensorType = TensorType::IQ4_NL;
    const SUB_BLOCKS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 32;
    const MAX_QUANT: i32 = 127;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe {
            let quants: [L::I8x64; 8] = nibbles!(p, b, 4, 0);
            eight!(|j| L::shuffle(&iq4_nl::VALUES, quants[j]))
        }
    }
    one_scale!(1);
    no_min!();
}

pub(crate) struct Iq4Xs;
impl QuantFormat for Iq4Xs {
    const TY: TensorType = TensorType::IQ4_XS;
    const SUB_BLOCKS: usize = 8;
    const UNROLL: usize = 2;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 160;
    const MAX_QUANT: i32 = 127;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            let quants: [L::I8x64; 8] = nibbles!(p, b, 32, 4 * (g * Self::UNROLL + S));
            eight!(|j| L::shuffle(&iq4_nl::VALUES, quants[j]))
        }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::F32x16; 2] {
        unsafe {
            [L::mul(super_scale::<L>(p, b, 1, 0), L::load_i8(scale_at(p, b, 8, g * Self::UNROLL + S))); 2]
        }
    }
    no_min!();
}

/// Sixteen 8-bit floating-point scales, decoded by `scale`.
///
/// # Safety
/// There are sixteen bytes at `from`; the ISA as for [`QuantFormat`].
#[inline(always)]
unsafe fn table_scales<L: Simd>(from: *const u8, scale: fn(u8) -> f32) -> L::F32x16 {
    // SAFETY: sixteen bytes at `from` by this function's contract, and sixteen floats on the stack.
    unsafe {
        let bytes = from.cast::<[u8; 16]>().read_unaligned();
        let mut scales = [0.0; 16];
        for (to, byte) in scales.iter_mut().zip(bytes) {
            *to = scale(byte);
        }
        L::load_f32(scales.as_ptr())
    }
}

pub(crate) struct Mxfp4;
impl QuantFormat for Mxfp4 {
    const TY: TensorType = TensorType::MXFP4;
    const SUB_BLOCKS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 16;
    // E2M1 values are multiples of 1/2 up to 6. Doubled they are integers, and scales are halved.
    const MAX_QUANT: i32 = 12;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe {
            let quants: [L::I8x64; 8] = nibbles!(p, b, 4, 0);
            eight!(|j| L::shuffle(&e2m1::DOUBLED, quants[j]))
        }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::F32x16; 2] {
        unsafe { [table_scales::<L>(p.super_scales.add(b * 16), mxfp4::half_scale); 2] }
    }
    no_min!();
}

pub(crate) struct Nvfp4;
impl QuantFormat for Nvfp4 {
    const TY: TensorType = TensorType::NVFP4;
    const SUB_BLOCKS: usize = 2;
    const QUANT_VECTORS: usize = 8;
    const REST_BYTES: usize = 64;
    const MAX_QUANT: i32 = 12;
    const KIND: QuantKind = QuantKind::Symmetric;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe {
            // 16 inputs are two vectors: their low nibbles, then their high nibbles.
            eight!(|j| {
                let bytes = L::load(quants_at(p, b, 8, S * 4 + j / 4 * 2 + j % 2));
                let quants = nibble!(bytes, j % 4 < 2);
                L::shuffle(&e2m1::DOUBLED, quants)
            })
        }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::F32x16; 2] {
        unsafe {
            two!(|half| table_scales::<L>(p.super_scales.add((b * 4 + 2 * S + half) * 16), nvfp4::half_scale))
        }
    }
    no_min!();
}
