//! Q4_0 to Q8_0: blocks of 32 with one f16 scale, and a min in Q4_1 and Q5_1.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "addresses lie inside block `b`, which the tile has by the contract of `QuantFormat`"
)]

use super::format::*;
use crate::simd::Simd;
use latent_types::TensorType;

pub(crate) struct Q4_0;
impl QuantFormat for Q4_0 {
    const TY: TensorType = TensorType::Q4_0;
    const SUB_BLOCKS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 32;
    const MAX_QUANT: i32 = 15;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { nibbles_shifted!(p, b, 4, 4) }
    }
    one_scale!(1);
    constant_min!(8);
}

pub(crate) struct Q4_1;
impl QuantFormat for Q4_1 {
    const TY: TensorType = TensorType::Q4_1;
    const SUB_BLOCKS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 64;
    const MAX_QUANT: i32 = 15;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { nibbles!(p, b, 4, 0) }
    }
    one_scale!(2);
    second_scale_is_min!();
}

/// Nibbles with their fifth bit, whose value is `$fifth`. The plane of upper bits has one bit per
/// quant, 64 per vector.
macro_rules! fifth_bits {
    ($p:expr, $b:expr, $nibbles:expr, $fifth:expr) => {{
        let low: [L::I8x64; 8] = $nibbles;
        eight!(|j| L::or(low[j], L::expand_bits($p.high.add(($b * 8 + j) * 8), $fifth)))
    }};
}

pub(crate) struct Q5_0;
impl QuantFormat for Q5_0 {
    const TY: TensorType = TensorType::Q5_0;
    const SUB_BLOCKS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 96;
    const MAX_QUANT: i32 = 31;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { fifth_bits!(p, b, nibbles_shifted!(p, b, 4, 3), 16 << Self::KIND.left_shift::<L>()) }
    }
    one_scale!(1);
    constant_min!(16);
}

pub(crate) struct Q5_1;
impl QuantFormat for Q5_1 {
    const TY: TensorType = TensorType::Q5_1;
    const SUB_BLOCKS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 128;
    const MAX_QUANT: i32 = 31;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { fifth_bits!(p, b, nibbles!(p, b, 4, 0), 16) }
    }
    one_scale!(2);
    second_scale_is_min!();
}

pub(crate) struct Q8_0;
impl QuantFormat for Q8_0 {
    const TY: TensorType = TensorType::Q8_0;
    const SUB_BLOCKS: usize = 1;
    const QUANT_VECTORS: usize = 8;
    const REST_BYTES: usize = 32;
    const MAX_QUANT: i32 = 128;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { eight!(|j| L::load(quants_at(p, b, 8, j))) }
    }
    one_scale!(1);
    no_min!();
}
