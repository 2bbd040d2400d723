//! How the blocks of each format are read from tiles: codes, scales and minimums of 32 inputs at a time.

use crate::simd::Simd;
use latent_quant::{e2m1, iq4_nl, mxfp4, nvfp4};
use latent_types::TensorType;

/// Addresses of a tile's planes.
#[derive(Clone, Copy)]
pub(crate) struct Planes {
    pub codes: *const u8,
    pub high: *const u8,
    pub scales: *const u8,
    pub factors: *const u8,
    /// Bytes from one tile to the next.
    pub tile_bytes: usize,
}

/// A format in tiles: number = scale · code − min.
///
/// # Safety
/// As for [`Simd`]; `p` holds the planes of a tile with more than `b` blocks of the format, `S` is below `UNROLL`, and `g` below `SUBS / UNROLL`.
pub(crate) trait Format {
    /// The format.
    const TY: TensorType;
    /// Runs of 32 inputs in a block.
    const SUBS: usize;
    /// Runs that kernels unroll. The loop over a block's `SUBS / UNROLL` groups is one at run time: unrolling all eight runs of a K format for each
    /// number of rows took half of this crate's compile time and gained nothing.
    const UNROLL: usize = if Self::SUBS < 4 { Self::SUBS } else { 4 };
    /// Vectors of codes of a block.
    const QUANT_VECTORS: usize;
    /// Bytes of a block of a tile besides its codes: upper bits, scales, factors.
    const REST_BYTES: usize;
    /// What codes are.
    const KIND: QuantKind = QuantKind::Affine;
    /// Numbers are signed bytes; else codes from 0 to 63.
    const SIGNED: bool = matches!(Self::KIND, QuantKind::Symmetric);
    /// Minimums are subtracted from results.
    const HAS_MIN: bool = matches!(Self::KIND, QuantKind::Affine);
    /// There is a scale (and min) for each 16 inputs, not for each 32.
    const SPLIT_SCALE: bool = false;

    /// Codes of run `S` of group `g` of block `b`: vector j has inputs 4j to 4j + 3. [ConstZero](QuantKind::ConstZero) ones are [shifted left](QuantKind::left_shift) where lanes take them so.
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::I8x64; 8];
    /// Scales of the run's halves, or the scale of the run twice.
    unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::F32x16; 2];
    /// Minimums, in the same way, from the scales where they follow from them.
    unsafe fn mins<L: Simd, const S: usize>(
        p: &Planes,
        b: usize,
        g: usize,
        scales: [L::F32x16; 2],
    ) -> [L::F32x16; 2];

    /// A factor of the file as one of the codes that are read: less, where these are raised. Exact, since it is a power of two.
    #[inline(always)]
    unsafe fn scale_for_quants<L: Simd>(factor: L::F32x16) -> L::F32x16 {
        let left_shift = Self::KIND.left_shift::<L>();
        if left_shift == 0 {
            return factor;
        }
        // SAFETY: the caller's promise.
        unsafe { L::mul(factor, L::splat_f32(1.0 / (1u32 << left_shift) as f32)) }
    }
}

/// What the codes of a format are, and so how integer sums of their products begin and what follows them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantKind {
    /// Codes from 0 to 63, and a minimum for each scale.
    Affine,
    /// Signed numbers, raised by 128 where products need it; minimums are none.
    Symmetric,
    /// Codes from 0 to 63 less a constant, a power of two: the minimum is the scale times this constant. Where lanes take whole bytes, codes are raised
    /// by so many bits that the constant is 128, and their sums begin as those of signed numbers do.
    ConstZero(u32),
}

impl QuantKind {
    /// Of a lowered kind, by how many bits −128 · Σ inputs is shifted right to be −constant · Σ inputs; else 0.
    pub const fn shift(self) -> u32 {
        match self {
            QuantKind::ConstZero(constant) => 128u32.ilog2() - constant.ilog2(),
            QuantKind::Affine | QuantKind::Symmetric => 0,
        }
    }

    /// By how many bits codes are moved up as they are read, which scales make up for.
    pub const fn left_shift<L: Simd>(self) -> u32 {
        if L::FULL_BYTES { self.shift() } else { 0 }
    }
}

/// Sixteen f16 factors of a block which has `count` of them; the one at `index`.
#[inline(always)]
unsafe fn factor<L: Simd>(p: &Planes, b: usize, count: usize, index: usize) -> L::F32x16 {
    // SAFETY: the caller's promise.
    unsafe { L::load_f16(p.factors.add((b * count + index) * 32)) }
}

/// Address of vector `v` of the codes of block `b`, which has `count` of them.
#[inline(always)]
unsafe fn vector(p: &Planes, b: usize, count: usize, v: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe { p.codes.add((b * count + v) * 64) }
}

/// Address of vector `v` of the upper bits of block `b`, which has `count` of them.
#[inline(always)]
unsafe fn high(p: &Planes, b: usize, count: usize, v: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe { p.high.add((b * count + v) * 64) }
}

/// Address of sixteen scales.
#[inline(always)]
unsafe fn scale(p: &Planes, b: usize, count: usize, index: usize) -> *const u8 {
    // SAFETY: the caller's promise.
    unsafe { p.scales.add((b * count + index) * 16) }
}

/// Eight vectors from an expression of j. No closure, neither here nor in `map`: one that is not inlined would be compiled without the tier's
/// instructions.
macro_rules! eight {
    (|$j:ident| $body:expr) => {
        eight!($j, $body, 0 1 2 3 4 5 6 7)
    };
    ($j:ident, $body:expr, $($value:literal)*) => {
        [$({
            let $j: usize = $value;
            $body
        }),*]
    };
}

/// Two vectors, in the same way.
macro_rules! two {
    (|$half:ident| $body:expr) => {
        [
            {
                let $half: usize = 0;
                $body
            },
            {
                let $half: usize = 1;
                $body
            },
        ]
    };
}
pub(crate) use two;

/// Low nibbles of four vectors from the one at `first` on, then their high nibbles.
macro_rules! nibbles {
    ($p:expr, $b:expr, $count:expr, $first:expr) => {
        eight!(|j| {
            let bytes = L::load(vector($p, $b, $count, $first + j % 4));
            if j < 4 { L::shift_right_mask::<0>(bytes, 15) } else { L::shift_right_mask::<4>(bytes, 15) }
        })
    };
}

/// The same, moved up by so many bits where lanes take codes of whole bytes.
macro_rules! nibbles_shifted {
    ($p:expr, $b:expr, $count:expr, $up:literal) => {
        if L::FULL_BYTES {
            eight!(|j| {
                let bytes = L::load(vector($p, $b, $count, j % 4));
                if j < 4 { L::shift_mask::<0, $up>(bytes, 15) } else { L::shift_mask::<4, $up>(bytes, 15) }
            })
        } else {
            nibbles!($p, $b, $count, 0)
        }
    };
}

macro_rules! constant_min {
    ($by:literal) => {
        const KIND: QuantKind = QuantKind::ConstZero($by);
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            _p: &Planes,
            _b: usize,
            _g: usize,
            scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            unsafe {
                two!(|half| L::mul(scales[half], L::splat_f32(($by << Self::KIND.left_shift::<L>()) as f32)))
            }
        }
    };
}

macro_rules! no_min {
    () => {
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            _p: &Planes,
            _b: usize,
            _g: usize,
            scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            scales
        }
    };
}

macro_rules! one_scale {
    ($count:expr) => {
        #[inline(always)]
        unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::F32x16; 2] {
            unsafe { [Self::scale_for_quants::<L>(factor::<L>(p, b, $count, 0)); 2] }
        }
    };
}

/// A factor, and a signed scale for each 16 inputs.
macro_rules! signed_scales {
    () => {
        #[inline(always)]
        unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::F32x16; 2] {
            unsafe {
                let d = Self::scale_for_quants::<L>(factor::<L>(p, b, 1, 0));
                two!(|half| L::mul(d, L::load_i8(scale(p, b, 16, 2 * (g * Self::UNROLL + S) + half))))
            }
        }
    };
}

macro_rules! second_factor_is_min {
    () => {
        // number = d · code + m
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            p: &Planes,
            b: usize,
            _g: usize,
            _scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            unsafe { [L::mul(factor::<L>(p, b, 2, 1), L::splat_f32(-1.0)); 2] }
        }
    };
}

pub(crate) struct Q4_0;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q4_0 {
    const TY: TensorType = TensorType::Q4_0;
    const SUBS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 32;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { nibbles_shifted!(p, b, 4, 4) }
    }
    one_scale!(1);
    constant_min!(8);
}

pub(crate) struct Q4_1;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q4_1 {
    const TY: TensorType = TensorType::Q4_1;
    const SUBS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 64;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { nibbles!(p, b, 4, 0) }
    }
    one_scale!(2);
    second_factor_is_min!();
}

/// Nibbles with their fifth bits, which this number is, from 64-bit vectors.
macro_rules! fifth_bits {
    ($p:expr, $b:expr, $nibbles:expr, $fifth:expr) => {{
        let low: [L::I8x64; 8] = $nibbles;
        eight!(|j| L::or(low[j], L::expand_bits($p.high.add(($b * 8 + j) * 8), $fifth)))
    }};
}

pub(crate) struct Q5_0;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q5_0 {
    const TY: TensorType = TensorType::Q5_0;
    const SUBS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 96;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { fifth_bits!(p, b, nibbles_shifted!(p, b, 4, 3), 16 << Self::KIND.left_shift::<L>()) }
    }
    one_scale!(1);
    constant_min!(16);
}

pub(crate) struct Q5_1;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q5_1 {
    const TY: TensorType = TensorType::Q5_1;
    const SUBS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 128;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { fifth_bits!(p, b, nibbles!(p, b, 4, 0), 16) }
    }
    one_scale!(2);
    second_factor_is_min!();
}

pub(crate) struct Q8_0;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q8_0 {
    const TY: TensorType = TensorType::Q8_0;
    const SUBS: usize = 1;
    const QUANT_VECTORS: usize = 8;
    const REST_BYTES: usize = 32;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe { eight!(|j| L::load(vector(p, b, 8, j))) }
    }
    one_scale!(1);
    no_min!();
}

/// Scale and min of Q4_K and Q5_K: two factors, and eight scales and eight minimums of 6 bits.
macro_rules! k_scales {
    () => {
        #[inline(always)]
        unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::F32x16; 2] {
            unsafe {
                [L::mul(factor::<L>(p, b, 2, 0), L::load_u8(scale(p, b, 16, g * Self::UNROLL + S), 0, 255));
                    2]
            }
        }
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            p: &Planes,
            b: usize,
            g: usize,
            _scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            unsafe {
                [L::mul(
                    factor::<L>(p, b, 2, 1),
                    L::load_u8(scale(p, b, 16, 8 + g * Self::UNROLL + S), 0, 255),
                ); 2]
            }
        }
    };
}

pub(crate) struct Q4K;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q4K {
    const TY: TensorType = TensorType::Q4_K;
    const SUBS: usize = 8;
    const UNROLL: usize = 2;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 320;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let bytes = L::load(vector(p, b, 32, g * 8 + j));
                if S.is_multiple_of(2) {
                    L::shift_right_mask::<0>(bytes, 15)
                } else {
                    L::shift_right_mask::<4>(bytes, 15)
                }
            })
        }
    }
    k_scales!();
}

/// Bit 4 `g` + `S` of each byte, moved to bit `UP`. Shifts are constants: the group, 0 or 1, is asked here.
macro_rules! bit {
    ($bytes:expr, $g:expr, $s:expr, $up:literal) => {
        match 4 * $g + $s {
            0 => L::shift_mask::<0, $up>($bytes, 1),
            1 => L::shift_mask::<1, $up>($bytes, 1),
            2 => L::shift_mask::<2, $up>($bytes, 1),
            3 => L::shift_mask::<3, $up>($bytes, 1),
            4 => L::shift_mask::<4, $up>($bytes, 1),
            5 => L::shift_mask::<5, $up>($bytes, 1),
            6 => L::shift_mask::<6, $up>($bytes, 1),
            _ => L::shift_mask::<7, $up>($bytes, 1),
        }
    };
}

/// The pair of bits of quarter `S` of each byte.
macro_rules! pair {
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
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q5K {
    const TY: TensorType = TensorType::Q5_K;
    const SUBS: usize = 8;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 832;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let bytes = L::load(vector(p, b, 32, (2 * g + S / 2) * 8 + j));
                let low = if S.is_multiple_of(2) {
                    L::shift_right_mask::<0>(bytes, 15)
                } else {
                    L::shift_right_mask::<4>(bytes, 15)
                };
                L::or(low, bit!(L::load(high(p, b, 8, j)), g, S, 4))
            })
        }
    }
    k_scales!();
}

pub(crate) struct Q6K;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q6K {
    const TY: TensorType = TensorType::Q6_K;
    const SUBS: usize = 8;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 1312;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let bytes = L::load(vector(p, b, 32, g * 16 + S % 2 * 8 + j));
                let upper = L::load(high(p, b, 16, g * 8 + j));
                if L::FULL_BYTES {
                    let low = if S % 4 < 2 {
                        L::shift_mask::<0, 2>(bytes, 15)
                    } else {
                        L::shift_mask::<4, 2>(bytes, 15)
                    };
                    L::or(low, pair!(upper, S, 6))
                } else {
                    let low = if S % 4 < 2 {
                        L::shift_right_mask::<0>(bytes, 15)
                    } else {
                        L::shift_right_mask::<4>(bytes, 15)
                    };
                    L::or(low, pair!(upper, S, 4))
                }
            })
        }
    }
    signed_scales!();
    constant_min!(32);
}

pub(crate) struct Q2K;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q2K {
    const TY: TensorType = TensorType::Q2_K;
    const SUBS: usize = 8;
    const QUANT_VECTORS: usize = 16;
    const REST_BYTES: usize = 320;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe { eight!(|j| pair!(L::load(vector(p, b, 16, g * 8 + j)), S, 0)) }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::F32x16; 2] {
        unsafe {
            let d = factor::<L>(p, b, 2, 0);
            two!(|half| L::mul(d, L::load_u8(scale(p, b, 16, 2 * (g * Self::UNROLL + S) + half), 0, 15)))
        }
    }
    #[inline(always)]
    unsafe fn mins<L: Simd, const S: usize>(
        p: &Planes,
        b: usize,
        g: usize,
        _scales: [L::F32x16; 2],
    ) -> [L::F32x16; 2] {
        unsafe {
            let d = factor::<L>(p, b, 2, 1);
            two!(|half| L::mul(d, L::load_u8(scale(p, b, 16, 2 * (g * Self::UNROLL + S) + half), 4, 15)))
        }
    }
}

pub(crate) struct Q3K;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Q3K {
    const TY: TensorType = TensorType::Q3_K;
    const SUBS: usize = 8;
    const QUANT_VECTORS: usize = 16;
    const REST_BYTES: usize = 800;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            eight!(|j| {
                let (lower, upper) = (L::load(vector(p, b, 16, g * 8 + j)), L::load(high(p, b, 8, j)));
                if L::FULL_BYTES {
                    L::or(pair!(lower, S, 5), bit!(upper, g, S, 7))
                } else {
                    L::or(pair!(lower, S, 0), bit!(upper, g, S, 2))
                }
            })
        }
    }
    signed_scales!();
    constant_min!(4);
}

pub(crate) struct Iq4Nl;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Iq4Nl {
    const TY: TensorType = TensorType::IQ4_NL;
    const SUBS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 32;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe {
            let codes: [L::I8x64; 8] = nibbles!(p, b, 4, 0);
            eight!(|j| L::shuffle(&iq4_nl::VALUES, codes[j]))
        }
    }
    one_scale!(1);
    no_min!();
}

pub(crate) struct Iq4Xs;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Iq4Xs {
    const TY: TensorType = TensorType::IQ4_XS;
    const SUBS: usize = 8;
    const UNROLL: usize = 2;
    const QUANT_VECTORS: usize = 32;
    const REST_BYTES: usize = 160;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::I8x64; 8] {
        unsafe {
            let codes: [L::I8x64; 8] = nibbles!(p, b, 32, 4 * (g * Self::UNROLL + S));
            eight!(|j| L::shuffle(&iq4_nl::VALUES, codes[j]))
        }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, g: usize) -> [L::F32x16; 2] {
        unsafe { [L::mul(factor::<L>(p, b, 1, 0), L::load_i8(scale(p, b, 8, g * Self::UNROLL + S))); 2] }
    }
    no_min!();
}

/// Sixteen 8-bit scales through their table.
#[inline(always)]
unsafe fn decoded<L: Simd>(from: *const u8, scale: fn(u8) -> f32) -> L::F32x16 {
    // SAFETY: the caller's promise.
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
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Mxfp4 {
    const TY: TensorType = TensorType::MXFP4;
    const SUBS: usize = 1;
    const QUANT_VECTORS: usize = 4;
    const REST_BYTES: usize = 16;
    const KIND: QuantKind = QuantKind::Symmetric;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe {
            let codes: [L::I8x64; 8] = nibbles!(p, b, 4, 0);
            eight!(|j| L::shuffle(&e2m1::DOUBLED, codes[j]))
        }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::F32x16; 2] {
        unsafe { [decoded::<L>(p.factors.add(b * 16), mxfp4::half_scale); 2] }
    }
    no_min!();
}

pub(crate) struct Nvfp4;
#[allow(clippy::undocumented_unsafe_blocks, reason = "addresses inside the block, as the trait promises")]
impl Format for Nvfp4 {
    const TY: TensorType = TensorType::NVFP4;
    const SUBS: usize = 2;
    const QUANT_VECTORS: usize = 8;
    const REST_BYTES: usize = 64;
    const KIND: QuantKind = QuantKind::Symmetric;
    const SPLIT_SCALE: bool = true;
    #[inline(always)]
    unsafe fn codes<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::I8x64; 8] {
        unsafe {
            // two bytes of vectors for 16 inputs: their low nibbles, then their high ones
            eight!(|j| {
                let bytes = L::load(vector(p, b, 8, S * 4 + j / 4 * 2 + j % 2));
                let codes = if j % 4 < 2 {
                    L::shift_right_mask::<0>(bytes, 15)
                } else {
                    L::shift_right_mask::<4>(bytes, 15)
                };
                L::shuffle(&e2m1::DOUBLED, codes)
            })
        }
    }
    #[inline(always)]
    unsafe fn scales<L: Simd, const S: usize>(p: &Planes, b: usize, _g: usize) -> [L::F32x16; 2] {
        unsafe { two!(|half| decoded::<L>(p.factors.add((b * 4 + 2 * S + half) * 16), nvfp4::half_scale)) }
    }
    no_min!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use latent_quant::tiles::TileLayout;

    /// What is asked for with each run is as much as a tile has.
    #[test]
    fn blocks_of_tiles_are_as_long_as_formats_say() {
        macro_rules! check {
            ($($format:ident)*) => {
                $({
                    let blocks = 8;
                    let layout = TileLayout::new($format::TY, blocks * 32 * $format::SUBS).expect("a format with tiles");
                    assert_eq!(layout.blocks(), blocks);
                    let bytes = $format::QUANT_VECTORS * 64 + $format::REST_BYTES;
                    assert_eq!(layout.tile_bytes(), blocks * bytes, "{}", $format::TY);
                })*
            };
        }
        check!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4 Nvfp4);
    }
}
