//! The interface of quantized formats in tiles (quants, scales and mins of 32 inputs at a time),
//! and code that formats share.

use crate::simd::Simd;
use latent_types::TensorType;

/// Addresses of a tile's planes.
#[derive(Clone, Copy)]
pub(crate) struct PlaneAddresses {
    pub quants: *const u8,
    /// Upper bits of quants.
    pub high: *const u8,
    /// 8-bit scales of sub-blocks.
    pub scales: *const u8,
    /// f16 scales of blocks: `d`, and `dmin` if the format has mins.
    pub super_scales: *const u8,
    /// Bytes from one tile to the next.
    pub tile_bytes: usize,
}

/// A quantized format in tiles of sixteen weight rows: weight = scale · quant − min.
///
/// A sub-block is 32 inputs. Methods read sub-block `g · UNROLL + S` of block `b`, for all sixteen
/// rows.
///
/// # Safety
/// Methods are called in code that is compiled for the ISA of `L`, on a CPU that has it. `p` holds
/// the planes of a tile of this format with more than `b` blocks, `S` is below `UNROLL`, and `g`
/// below `SUB_BLOCKS / UNROLL`.
pub(crate) trait QuantFormat {
    const TY: TensorType;
    const SUB_BLOCKS: usize;
    /// Sub-blocks that kernels unroll; the `SUB_BLOCKS / UNROLL` groups of a block are a loop at
    /// run time.
    // Unrolling all eight sub-blocks of a K-quant took half of this crate's compile time and gained
    // nothing.
    // measured: docs/notes/build-time.md "Build time"
    const UNROLL: usize = if Self::SUB_BLOCKS < 4 { Self::SUB_BLOCKS } else { 4 };
    /// Vectors of quants per block.
    const QUANT_VECTORS: usize;
    /// Bytes of a tile's block besides quants: upper bits, scales, super-block scales.
    const REST_BYTES: usize;
    /// Largest magnitude of a quant, before [shifting](QuantKind::left_shift).
    const MAX_QUANT: i32;
    /// How quants become weights.
    const KIND: QuantKind = QuantKind::Affine;
    /// Quants are signed bytes; otherwise they are unsigned, at most 63 before
    /// [shifting](QuantKind::left_shift).
    const SIGNED: bool = matches!(Self::KIND, QuantKind::Symmetric);
    /// A min is subtracted from results.
    const HAS_MIN: bool = matches!(Self::KIND, QuantKind::Affine);
    /// Each 16 inputs have their own scale (and min); otherwise each 32.
    const SPLIT_SCALE: bool = false;

    /// Quants of a sub-block: vector j has inputs 4j to 4j + 3 of each row, as `vpdpbusd`
    /// multiplies them. With a [constant zero point](QuantKind::ConstZero), they are [shifted
    /// left](QuantKind::left_shift) on ISAs that multiply full bytes.
    unsafe fn quants<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::I8x64; 8];
    /// Scales of the sub-block's two halves, or its one scale twice.
    unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::F32x16; 2];
    /// Mins in the same form; with a constant zero point they follow from `scales`.
    unsafe fn mins<L: Simd, const S: usize>(
        p: &PlaneAddresses,
        b: usize,
        g: usize,
        scales: [L::F32x16; 2],
    ) -> [L::F32x16; 2];

    /// The scale of the quants as [`quants`](Self::quants) returns them, from a stored scale:
    /// divided by 2^left shift, which is exact.
    #[inline(always)]
    unsafe fn scale_for_quants<L: Simd>(scale: L::F32x16) -> L::F32x16 {
        let left_shift = Self::KIND.left_shift::<L>();
        if left_shift == 0 {
            return scale;
        }
        // SAFETY: register operations of an ISA that the CPU has by this trait's contract.
        unsafe { L::mul(scale, L::splat_f32(1.0 / (1u32 << left_shift) as f32)) }
    }
}

/// How quants become weights. Determines an accumulator's initial value and whether a min term
/// follows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantKind {
    /// Unsigned quants from 0 to 63, with a min per scale.
    Affine,
    /// Signed quants without a min. ISAs whose dot product takes unsigned quants bias them by 128.
    Symmetric,
    /// Unsigned quants with a constant power-of-two zero point of at most 32. ISAs that multiply
    /// full bytes shift quants left until the zero point is 128. The accumulator then starts at
    /// `Q8Block::bias`, as for biased signed quants.
    // Eight rows of Q4_0 take 436 instead of 707 µs, of Q5_0 450 instead of 613 µs (Zen 5).
    // measured: docs/notes/gemv-and-gemm.md "Registers and accumulators"
    ConstZero(u32),
}

impl QuantKind {
    /// How far −128 · Σ inputs is shifted right to become −zero point · Σ inputs; 0 without a
    /// constant zero point.
    pub const fn shift(self) -> u32 {
        match self {
            QuantKind::ConstZero(zero_point) => 128u32.ilog2() - zero_point.ilog2(),
            QuantKind::Affine | QuantKind::Symmetric => 0,
        }
    }

    /// How far quants are shifted left when they are read. Scales are divided accordingly.
    pub const fn left_shift<L: Simd>(self) -> u32 {
        if L::FULL_BYTES { self.shift() } else { 0 }
    }
}

/// f16 super-block scale `index` of `count` per block, for sixteen rows.
///
/// # Safety
/// As for [`QuantFormat`]: block `b` of the tile has `count` of them.
#[inline(always)]
pub(super) unsafe fn super_scale<L: Simd>(
    p: &PlaneAddresses,
    b: usize,
    count: usize,
    index: usize,
) -> L::F32x16 {
    // SAFETY: 32 bytes per scale inside the plane, by this function's contract.
    unsafe { L::load_f16(p.super_scales.add((b * count + index) * 32)) }
}

/// Address of vector `v` of the `count` vectors of quants per block.
///
/// # Safety
/// As for [`QuantFormat`]: block `b` of the tile has `count` of them.
#[inline(always)]
pub(super) unsafe fn quants_at(p: &PlaneAddresses, b: usize, count: usize, v: usize) -> *const u8 {
    // SAFETY: 64 bytes per vector inside the plane, by this function's contract.
    unsafe { p.quants.add((b * count + v) * 64) }
}

/// Address of vector `v` of the `count` vectors of upper bits per block.
///
/// # Safety
/// As for [`QuantFormat`]: block `b` of the tile has `count` of them.
#[inline(always)]
pub(super) unsafe fn high_at(p: &PlaneAddresses, b: usize, count: usize, v: usize) -> *const u8 {
    // SAFETY: 64 bytes per vector inside the plane, by this function's contract.
    unsafe { p.high.add((b * count + v) * 64) }
}

/// Address of sixteen rows' sub-block scale `index` of `count` per block.
///
/// # Safety
/// As for [`QuantFormat`]: block `b` of the tile has `count` of them.
#[inline(always)]
pub(super) unsafe fn scale_at(p: &PlaneAddresses, b: usize, count: usize, index: usize) -> *const u8 {
    // SAFETY: sixteen bytes per scale inside the plane, by this function's contract.
    unsafe { p.scales.add((b * count + index) * 16) }
}

/// Eight vectors from an expression of j. A macro rather than a closure or `map`: a closure that is
/// not inlined is compiled without the ISA's instructions.
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

/// Two vectors from an expression of the half, in the same way.
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

/// The low or high nibbles of bytes.
macro_rules! nibble {
    ($bytes:expr, $low:expr) => {
        if $low { L::shift_right_mask::<0>($bytes, 15) } else { L::shift_right_mask::<4>($bytes, 15) }
    };
}

/// Low nibbles of four vectors from vector `$first` on, then their high nibbles.
macro_rules! nibbles {
    ($p:expr, $b:expr, $count:expr, $first:expr) => {
        eight!(|j| {
            let bytes = L::load(quants_at($p, $b, $count, $first + j % 4));
            if j < 4 { L::shift_right_mask::<0>(bytes, 15) } else { L::shift_right_mask::<4>(bytes, 15) }
        })
    };
}

/// As `nibbles!` from vector 0 on, shifted left by `$up` bits on ISAs that multiply full bytes.
macro_rules! nibbles_shifted {
    ($p:expr, $b:expr, $count:expr, $up:literal) => {
        if L::FULL_BYTES {
            eight!(|j| {
                let bytes = L::load(quants_at($p, $b, $count, j % 4));
                if j < 4 { L::shift_mask::<0, $up>(bytes, 15) } else { L::shift_mask::<4, $up>(bytes, 15) }
            })
        } else {
            nibbles!($p, $b, $count, 0)
        }
    };
}

/// Mins of a format with a constant zero point: zero point · scale. Only AMX reads them; other
/// kernels subtract the zero point in the integer sum.
macro_rules! constant_min {
    ($zero_point:literal) => {
        const KIND: QuantKind = QuantKind::ConstZero($zero_point);
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            _p: &PlaneAddresses,
            _b: usize,
            _g: usize,
            scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            unsafe {
                two!(|half| L::mul(
                    scales[half],
                    L::splat_f32(($zero_point << Self::KIND.left_shift::<L>()) as f32)
                ))
            }
        }
    };
}

/// Placeholder mins of a symmetric format. No kernel reads them.
macro_rules! no_min {
    () => {
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            _p: &PlaneAddresses,
            _b: usize,
            _g: usize,
            scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            scales
        }
    };
}

/// One f16 scale per block, the first of `$count`.
macro_rules! one_scale {
    ($count:expr) => {
        #[inline(always)]
        unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, _g: usize) -> [L::F32x16; 2] {
            unsafe { [Self::scale_for_quants::<L>(super_scale::<L>(p, b, $count, 0)); 2] }
        }
    };
}

/// An f16 super-block scale, and a signed 8-bit scale per 16 inputs.
macro_rules! signed_scales {
    () => {
        #[inline(always)]
        unsafe fn scales<L: Simd, const S: usize>(p: &PlaneAddresses, b: usize, g: usize) -> [L::F32x16; 2] {
            unsafe {
                let d = Self::scale_for_quants::<L>(super_scale::<L>(p, b, 1, 0));
                two!(|half| L::mul(d, L::load_i8(scale_at(p, b, 16, 2 * (g * Self::UNROLL + S) + half))))
            }
        }
    };
}

/// The second f16 of a block is added to weights: a negated min.
macro_rules! second_scale_is_min {
    () => {
        // weight = d · quant + m, so the min to subtract is −m.
        #[inline(always)]
        unsafe fn mins<L: Simd, const S: usize>(
            p: &PlaneAddresses,
            b: usize,
            _g: usize,
            _scales: [L::F32x16; 2],
        ) -> [L::F32x16; 2] {
            unsafe { [L::mul(super_scale::<L>(p, b, 2, 1), L::splat_f32(-1.0)); 2] }
        }
    };
}
pub(crate) use two;
pub(super) use {
    constant_min, eight, nibble, nibbles, nibbles_shifted, no_min, one_scale, second_scale_is_min,
    signed_scales,
};
