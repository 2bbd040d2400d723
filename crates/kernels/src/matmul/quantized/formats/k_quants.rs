//! Q2_K to Q6_K: super-blocks of 256 with eight sub-blocks of 32.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "addresses lie inside block `b`, which the tile has by the contract of `QuantFormat`"
)]

use super::format::*;
use crate::simd::Simd;
use latent_types::TensorType;

/// Scales and mins of Q4_K and Q5_K: `d` and `dmin` per super-block, a 6-bit scale and a 6-bit min
/// per sub-block, which tiles store as bytes.
macro_rules! k_scales {
    () => {
        #[inline(always)]
        unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::F32x16; 2] {
            unsafe {
                [L::mul(
                    super_scale::<L>(p, b, 2, 0),
                    L::load_u8(scale_at(p, b, 16, g * Self::UNROLL + S), 0, 255),
                ); 2]
            }
        }
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            p: &PlaneAddresses,
            b: usize,
            g: usize,
            _scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            unsafe {
                [L::mul(
                    super_scale::<L>(p, b, 2, 1),
                    L::load_u8(scale_at(p, b, 16, 8 + g * Self::UNROLL + S), 0, 255),
                ); 2]
            }
        }
    };
}

pub(crate) struct Q4K;
impl QuantFormat for Q4K {
    const TY: TensorType = TensorType::Q4_K;
    const SUB_BLOCKS: usize = 8;
    // Two sub-blocks share a vector: one has the low nibbles, the other one the high nibbles.
    const UNROLL: usize = 2;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 320;
    const MAX_QUANT: i32 = 15;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let bytes = L::load(quants_at(p, b, 32, g * 8 + j));
                nibble!(bytes, S.is_multiple_of(2))
            })
        }
    }
    k_scales!();
}

/// Bits 2·`S` and 2·`S` + 1 of each byte, moved to bit `UP`.
macro_rules! bit_pair {
    ($bytes:expr, $s:expr, $up:literal) => {
        match $s {
            0 => L::shift_mask::<0, $up>($bytes, 3),
            1 => L::shift_mask::<2, $up>($bytes, 3),
            2 => L::shift_mask::<4, $up>($bytes, 3),
            _ => L::shift_mask::<6, $up>($bytes, 3),
        }
    };
}

pub(crate) struct Q5K;
impl QuantFormat for Q5K {
    const TY: TensorType = TensorType::Q5_K;
    const SUB_BLOCKS: usize = 8;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 832;
    const MAX_QUANT: i32 = 31;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let bytes = L::load(quants_at(p, b, 32, (2 * g + S / 2) * 8 + j));
                let low = nibble!(bytes, S.is_multiple_of(2));
                L::or(low, L::bit::<4>(L::load(high_at(p, b, 8, j)), 4 * g + S))
            })
        }
    }
    k_scales!();
}

pub(crate) struct Q6K;
impl QuantFormat for Q6K {
    const TY: TensorType = TensorType::Q6_K;
    const SUB_BLOCKS: usize = 8;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 1312;
    const MAX_QUANT: i32 = 63;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let bytes = L::load(quants_at(p, b, 32, g * 16 + S % 2 * 8 + j));
                let upper = L::load(high_at(p, b, 16, g * 8 + j));
                // Full bytes: 6-bit quants are shifted left by 2, which moves the zero point from
                // 32 to 128.
                if L::FULL_BYTES {
                    let low = if S % 4 < 2 {
                        L::shift_mask::<0, 2>(bytes, 15)
                    } else {
                        L::shift_mask::<4, 2>(bytes, 15)
                    };
                    L::or(low, bit_pair!(upper, S, 6))
                } else {
                    let low = nibble!(bytes, S % 4 < 2);
                    L::or(low, bit_pair!(upper, S, 4))
                }
            })
        }
    }
    signed_scales!();
    constant_min!(32);
}

pub(crate) struct Q2K;
impl QuantFormat for Q2K {
    const TY: TensorType = TensorType::Q2_K;
    const SUB_BLOCKS: usize = 8;
    const QUANT_VECTORS: usize = 16;
    const REST_BYTES: usize = 320;
    const MAX_QUANT: i32 = 3;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe { eight!(|j| bit_pair!(L::load(quants_at(p, b, 16, g * 8 + j)), S, 0)) }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::F32x16; 2] {
        unsafe {
            let d = super_scale::<L>(p, b, 2, 0);
            two!(|half| L::mul(d, L::load_u8(scale_at(p, b, 16, 2 * (g * Self::UNROLL + S) + half), 0, 15)))
        }
    }
    #[inline(always)]
    unsafe fn mins<L: Simd, const S: usize>(
        p: &PlaneAddresses,
        b: usize,
        g: usize,
        _scales: [L::F32x16; 2],
    ) -> [L::F32x16; 2] {
        unsafe {
            let d = super_scale::<L>(p, b, 2, 1);
            two!(|half| L::mul(d, L::load_u8(scale_at(p, b, 16, 2 * (g * Self::UNROLL + S) + half), 4, 15)))
        }
    }
}

pub(crate) struct Q3K;
impl QuantFormat for Q3K {
    const TY: TensorType = TensorType::Q3_K;
    const SUB_BLOCKS: usize = 8;
    const QUANT_VECTORS: usize = 16;
    const REST_BYTES: usize = 800;
    const MAX_QUANT: i32 = 7;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let (lower, upper) = (L::load(quants_at(p, b, 16, g * 8 + j)), L::load(high_at(p, b, 8, j)));
                // Full bytes: 3-bit quants are shifted left by 5, which moves the zero point from 4
                // to 128.
                if L::FULL_BYTES {
                    L::or(bit_pair!(lower, S, 5), L::bit::<7>(upper, 4 * g + S))
                } else {
                    L::or(bit_pair!(lower, S, 0), L::bit::<2>(upper, 4 * g + S))
                }
            })
        }
    }
    signed_scales!();
    constant_min!(4);
}
