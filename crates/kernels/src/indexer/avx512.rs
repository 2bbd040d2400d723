//! Scores of an indexer with AVX-512: heads are in the lanes and keys are broadcast. Terms are bf16
//! pairs or groups of four bytes.
//!
//! So sums and weights stay in registers. With keys in the rows of a product, and a sum across
//! lanes per key, the scan was 20 to 30 % slower (`docs/notes/attention-kernels.md`, "Sparse
//! attention").
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::args::{IndexArgs, LANES};
use crate::bf16::layout::{F32Matrix, aligned, below, pair, right_panel, transpose};
use crate::bf16_layout::{K_STEP, PANEL};
use crate::kv_cache::{CACHE_LINE, scale_of, widen};
use crate::simd::avx512::Avx512;
use latent_types::{CacheRow, CacheType};
use std::arch::x86_64::*;

/// Keys that are loaded together: 16 KB of bf16 at a width of 128, which stay in L1 with the panel
/// of a query. All queries of a call are scored with a block before the next one is loaded.
const KEY_BLOCK: usize = 64;

/// Keys of a register tile: with two vectors of heads, sixteen accumulators.
const STRIP: usize = 8;

/// Words of 32 bits of a key in a step of a panel.
const STEP_WORDS: usize = 16;

/// Bytes of a step of a panel: two tiles of sixteen lines, each with a word of sixteen heads.
const STEP_BYTES: usize = 2 * STEP_WORDS * 64;

/// A type of terms, with dot products of a 32-bit word of a key and the words of sixteen heads.
trait IndexDot {
    /// Terms per word.
    const TERMS: usize;
    type Acc: Copy;

    /// Initial accumulator of sixteen heads, given their biases.
    ///
    /// # Safety
    /// The caller is compiled for the dot product's ISA; sixteen elements are at `bias`.
    unsafe fn start(bias: *const i32) -> Self::Acc;

    /// Adds the products of a word of a key with a line of a panel.
    ///
    /// # Safety
    /// The caller is compiled for the dot product's ISA; a word is at `key`.
    unsafe fn dot(acc: Self::Acc, line: __m512i, key: *const i32) -> Self::Acc;

    /// The products as f32, without the scales of key and heads.
    ///
    /// # Safety
    /// The caller is compiled for the dot product's ISA.
    unsafe fn products(acc: Self::Acc) -> __m512;

    /// Packs the heads of a group, at most 32, as a panel, and writes their biases. The weights are
    /// multiplied by the scales of the heads.
    ///
    /// # Safety
    /// The caller is compiled for the dot product's ISA; there is room for a panel and for 32
    /// biases and weights.
    unsafe fn pack_group(heads: F32Matrix, panel: *mut u8, bias: *mut i32, weights: &mut [f32]);

    /// Loads a key of the cache, padded with zeros to a whole step. Returns the factor of its
    /// score.
    ///
    /// # Safety
    /// The caller is compiled for the dot product's ISA; there is room for whole steps.
    unsafe fn load_key(row: CacheRow, key: &[u8], wide: &mut [f32], to: *mut u8) -> f32;
}

/// Keys and queries rounded to bf16.
struct Bf16Index;

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "intrinsics of the ISA, and addresses by the contract of `IndexDot`"
)]
impl IndexDot for Bf16Index {
    const TERMS: usize = 2;
    type Acc = __m512;

    #[inline(always)]
    unsafe fn start(_bias: *const i32) -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn dot(acc: __m512, line: __m512i, key: *const i32) -> __m512 {
        // All three types have 512 bits.
        unsafe {
            let key = _mm512_set1_epi32(key.read_unaligned());
            _mm512_dpbf16_ps(
                acc,
                std::mem::transmute::<__m512i, __m512bh>(line),
                std::mem::transmute::<__m512i, __m512bh>(key),
            )
        }
    }

    #[inline(always)]
    unsafe fn products(acc: __m512) -> __m512 {
        acc
    }

    #[inline(always)]
    unsafe fn pack_group(heads: F32Matrix, panel: *mut u8, _bias: *mut i32, _weights: &mut [f32]) {
        unsafe { right_panel(heads, &[1.0; PANEL], panel.cast()) }
    }

    #[inline(always)]
    unsafe fn load_key(row: CacheRow, key: &[u8], wide: &mut [f32], to: *mut u8) -> f32 {
        let width = row.content;
        if !matches!(row.ty, CacheType::F16 | CacheType::Bf16) {
            unsafe { widen::<Avx512>(row, key, &mut wide[..width]) };
        }
        let whole = width / K_STEP * K_STEP;
        unsafe {
            for first in (0..whole).step_by(K_STEP) {
                let line = bf16_terms::<true>(row.ty, key, wide, first, K_STEP);
                _mm512_storeu_si512(to.add(2 * first).cast(), line);
            }
            if whole < width {
                let line = bf16_terms::<false>(row.ty, key, wide, whole, width - whole);
                _mm512_storeu_si512(to.add(2 * whole).cast(), line);
            }
        }
        1.0
    }
}

/// `count` terms of a key from `first` on in bf16; 32 if `FULL`. Keys of other types than f16 and
/// bf16 are in `wide`.
// Masks for each 32 terms of a key cost a tenth of the time, hence the form without.
// measured: docs/notes/attention-kernels.md "Sparse attention"
///
/// # Safety
/// The caller is compiled for AVX512-BF16; the key has these terms.
#[inline(always)]
unsafe fn bf16_terms<const FULL: bool>(
    ty: CacheType,
    key: &[u8],
    wide: &[f32],
    first: usize,
    count: usize,
) -> __m512i {
    let masks = if FULL { [u16::MAX; 2] } else { [below(count), below(count.saturating_sub(LANES))] };
    let from = key.as_ptr().wrapping_add(2 * first);
    // SAFETY: terms of the key by this function's contract; masked lanes are not read.
    unsafe {
        match ty {
            CacheType::Bf16 => {
                let mask = u32::from(masks[0]) | u32::from(masks[1]) << LANES;
                _mm512_maskz_loadu_epi16(mask, from.cast())
            }
            CacheType::F16 => {
                let low = _mm256_maskz_loadu_epi16(masks[0], from.cast());
                let high = _mm256_maskz_loadu_epi16(masks[1], from.wrapping_add(32).cast());
                pair(_mm512_cvtph_ps(low), _mm512_cvtph_ps(high))
            }
            _ => {
                let from = wide.as_ptr().wrapping_add(first);
                let low = _mm512_maskz_loadu_ps(masks[0], from);
                pair(low, _mm512_maskz_loadu_ps(masks[1], from.wrapping_add(LANES)))
            }
        }
    }
}

/// Keys of int8, which the cache stores with an offset of 128, and queries in int8 with a scale per
/// head.
struct Int8Index;

#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "intrinsics of the ISA, and addresses by the contract of `IndexDot`"
)]
impl IndexDot for Int8Index {
    const TERMS: usize = 4;
    type Acc = __m512i;

    #[inline(always)]
    unsafe fn start(bias: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(bias.cast()) }
    }

    #[inline(always)]
    unsafe fn dot(acc: __m512i, line: __m512i, key: *const i32) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, _mm512_set1_epi32(key.read_unaligned()), line) }
    }

    #[inline(always)]
    unsafe fn products(acc: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(acc) }
    }

    #[inline(always)]
    unsafe fn pack_group(heads: F32Matrix, panel: *mut u8, bias: *mut i32, weights: &mut [f32]) {
        let step_terms = Self::TERMS * STEP_WORDS;
        for tile in 0..2 {
            let mut factors = [0.0f32; LANES];
            for (i, factor) in (LANES * tile..heads.rows).zip(&mut factors) {
                let head = unsafe {
                    std::slice::from_raw_parts(heads.start.wrapping_add(i * heads.stride), heads.cols)
                };
                let largest = head.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                if largest > 0.0 {
                    *factor = 127.0 / largest;
                }
                weights[i] *= largest / 127.0;
            }
            let mut sums = unsafe { _mm512_setzero_si512() };
            for first in (0..heads.cols).step_by(step_terms) {
                let mut lines = unsafe { [_mm512_setzero_si512(); LANES] };
                for (i, line) in (LANES * tile..heads.rows).zip(&mut lines) {
                    let mut bytes = [0i8; 64];
                    for from in (first..heads.cols.min(first + step_terms)).step_by(LANES) {
                        unsafe {
                            let mask = below(heads.cols - from);
                            let x = _mm512_maskz_loadu_ps(
                                mask,
                                heads.start.wrapping_add(i * heads.stride + from),
                            );
                            let x = _mm512_mul_ps(x, _mm512_set1_ps(factors[i - LANES * tile]));
                            let quants = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x));
                            _mm_storeu_si128(bytes.as_mut_ptr().add(from - first).cast(), quants);
                        }
                    }
                    *line = unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
                }
                unsafe {
                    let to = panel.add(first / step_terms * STEP_BYTES + tile * STEP_BYTES / 2);
                    for (i, line) in transpose(lines).into_iter().enumerate() {
                        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), line);
                        _mm512_storeu_si512(to.add(64 * i).cast(), line);
                    }
                }
            }
            // Correction for keys biased by 128: −128 · the sum of a head's quants.
            unsafe {
                let offset = _mm512_mullo_epi32(sums, _mm512_set1_epi32(-128));
                _mm512_storeu_si512(bias.add(LANES * tile).cast(), offset);
            }
        }
    }

    #[inline(always)]
    unsafe fn load_key(row: CacheRow, key: &[u8], _wide: &mut [f32], to: *mut u8) -> f32 {
        let whole = row.content / 64 * 64;
        unsafe {
            for first in (0..whole).step_by(64) {
                let quants = _mm512_loadu_si512(key.as_ptr().add(first).cast());
                _mm512_storeu_si512(to.add(first).cast(), quants);
            }
            if whole < row.content {
                let mask = u64::MAX >> (64 - (row.content - whole));
                let quants = _mm512_maskz_loadu_epi8(mask, key.as_ptr().add(whole).cast());
                _mm512_storeu_si512(to.add(whole).cast(), quants);
            }
        }
        scale_of(key)
    }
}

/// Whether this module computes the scores.
// Independent of `limit_tier`, since these scores are rounded differently: a limit set by another
// user of the process must not change results.
pub(super) fn reads(args: &IndexArgs<'_>) -> bool {
    match args.cache.ty() {
        _ if args.exact || !args.avx512 => false,
        CacheType::F32 => false,
        CacheType::Int8 => crate::isa::Avx512::detect().is_some(),
        _ => crate::isa::Avx512Bf16::detect().is_some(),
    }
}

/// As [`index_scores`](super::index_scores): queries and keys are rounded to bf16, or queries to
/// int8 if keys are int8.
///
/// # Panics
/// As `index_scores`, and when [`reads`] is false.
pub(super) fn scores(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    crate::isa::isa_fn! { Avx512Bf16;
        fn bf16(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
            // SAFETY: this function is compiled for the ISA, and the body is inlined into it.
            unsafe { scores_of::<Bf16Index>(args, out, scratch) }
        }
    }
    crate::isa::isa_fn! { Avx512;
        fn int8(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
            // SAFETY: this function is compiled for the ISA, and the body is inlined into it.
            unsafe { scores_of::<Int8Index>(args, out, scratch) }
        }
    }
    assert!(reads(args), "keys of {}", args.cache.ty());
    // SAFETY: `reads` has detected the ISA.
    unsafe {
        if args.cache.ty() == CacheType::Int8 { int8(args, out, scratch) } else { bf16(args, out, scratch) }
    }
}

/// # Safety
/// The caller is compiled for the dot product's ISA.
#[inline(always)]
unsafe fn scores_of<D: IndexDot>(args: &IndexArgs<'_>, out: &mut [f32], scratch: &mut Vec<f32>) {
    let (width, heads, count) = args.check(out);
    let (groups, steps) = (heads.div_ceil(PANEL), width.div_ceil(D::TERMS * STEP_WORDS));
    let (key_bytes, panel_bytes) = (steps * STEP_WORDS * 4, steps * STEP_BYTES);
    let columns = groups * PANEL;
    let query_bytes = groups * panel_bytes;
    let lengths =
        [KEY_BLOCK * key_bytes / 4, count * query_bytes / 4, count * columns, count * columns, width];
    let memory = aligned(scratch, lengths.iter().sum());
    let (keys, rest) = memory.split_at_mut(lengths[0]);
    let (panels, rest) = rest.split_at_mut(lengths[1]);
    let (biases, rest) = rest.split_at_mut(lengths[2]);
    let (weights, wide) = rest.split_at_mut(lengths[3]);
    let (keys, panels, biases): (*mut u8, *mut u8, *mut i32) =
        (keys.as_mut_ptr().cast(), panels.as_mut_ptr().cast(), biases.as_mut_ptr().cast());
    weights.fill(0.0);
    for (query, line) in weights.chunks_exact_mut(columns).enumerate() {
        line[..heads].copy_from_slice(&args.weights[query * heads..][..heads]);
        for (group, weights) in line.chunks_exact_mut(PANEL).enumerate() {
            let from = (query * heads + group * PANEL) * width;
            let rows = PANEL.min(heads - group * PANEL);
            let q = &args.q[from..from + rows * width];
            let matrix = F32Matrix { start: q.as_ptr(), stride: width, rows, cols: width };
            let at = query * groups + group;
            // SAFETY: the rows of `q`, and room for a panel and 32 biases per group of each query.
            unsafe {
                let (panel, bias) = (panels.add(at * panel_bytes), biases.add(at * PANEL));
                D::pack_group(matrix, panel, bias, weights);
            }
        }
    }
    let row = CacheRow { ty: args.cache.ty(), content: width, rope: 0 };
    let row_bytes = row.bytes();
    let keys_len = args.rows.len();
    let mut factors = [1.0f32; KEY_BLOCK];
    let mut first = 0;
    while first < keys_len {
        let start = args.rows.start + first;
        let (loaded, mut prefetch) = args.cache.block(start, args.rows.end, KEY_BLOCK);
        let (rows, stored) = (args.cache.row(start).as_ptr(), args.cache.row_bytes());
        assert!(stored >= row_bytes, "a key");
        for (i, factor) in factors.iter_mut().enumerate().take(loaded) {
            // SAFETY: the rows of a block are contiguous in the cache, and there is room for each
            // key.
            unsafe {
                prefetch.prefetch::<Avx512>(stored.div_ceil(CACHE_LINE));
                let key = std::slice::from_raw_parts(rows.add(i * stored), row_bytes);
                *factor = D::load_key(row, key, wide, keys.add(i * key_bytes));
            }
        }
        for query in 0..count {
            let out = &mut out[query * keys_len + first..][..loaded];
            for (strip, out) in out.chunks_mut(STRIP).enumerate() {
                // SAFETY: a strip of the block, the panels, biases and weights of the query. Keys
                // after the last one are of an earlier block or zeros; their scores are not read.
                let scores = unsafe {
                    strip_scores::<D>(
                        (keys.add(strip * STRIP * key_bytes), key_bytes),
                        (panels.add(query * query_bytes), panel_bytes),
                        biases.add(query * columns),
                        &weights[query * columns..][..columns],
                    )
                };
                for ((out, score), factor) in out.iter_mut().zip(scores).zip(&factors[strip * STRIP..]) {
                    *out = score * factor;
                }
            }
        }
        first += loaded;
    }
}

/// Scores of the keys of a strip, without their factors.
///
/// # Safety
/// The caller is compiled for the dot product's ISA. There are [`STRIP`] keys, a panel per 32
/// weights, and as many biases as weights.
#[inline(always)]
unsafe fn strip_scores<D: IndexDot>(
    (keys, key_bytes): (*const u8, usize),
    (panels, panel_bytes): (*const u8, usize),
    biases: *const i32,
    weights: &[f32],
) -> [f32; STRIP] {
    // SAFETY: addresses by this function's contract.
    unsafe {
        let zero = _mm512_setzero_ps();
        let mut sums = [zero; STRIP];
        for (group, weights) in weights.chunks_exact(PANEL).enumerate() {
            let (panel, bias) = (panels.add(group * panel_bytes), biases.add(group * PANEL));
            let mut acc = [[D::start(bias), D::start(bias.add(LANES))]; STRIP];
            for step in 0..panel_bytes / STEP_BYTES {
                for word in 0..STEP_WORDS {
                    let line = panel.add(step * STEP_BYTES + word * 64);
                    let low = _mm512_loadu_si512(line.cast());
                    let high = _mm512_loadu_si512(line.add(STEP_BYTES / 2).cast());
                    for (i, acc) in acc.iter_mut().enumerate() {
                        let key = keys.add(i * key_bytes + (step * STEP_WORDS + word) * 4).cast();
                        *acc = [D::dot(acc[0], low, key), D::dot(acc[1], high, key)];
                    }
                }
            }
            let low = _mm512_loadu_ps(weights.as_ptr());
            let high = _mm512_loadu_ps(weights.as_ptr().add(LANES));
            for (sum, acc) in sums.iter_mut().zip(acc) {
                *sum = _mm512_fmadd_ps(low, _mm512_max_ps(D::products(acc[0]), zero), *sum);
                *sum = _mm512_fmadd_ps(high, _mm512_max_ps(D::products(acc[1]), zero), *sum);
            }
        }
        let halves =
            sums.map(|sum| _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps::<1>(sum)));
        let pairs: [__m256; 4] = std::array::from_fn(|i| _mm256_hadd_ps(halves[2 * i], halves[2 * i + 1]));
        let fours: [__m256; 2] = std::array::from_fn(|i| _mm256_hadd_ps(pairs[2 * i], pairs[2 * i + 1]));
        // The lower half of `fours[i]` has sums of four lanes of keys 4 i to 4 i + 3, the upper
        // half the sums of the other four lanes.
        let lower = _mm256_permute2f128_ps::<0x20>(fours[0], fours[1]);
        let upper = _mm256_permute2f128_ps::<0x31>(fours[0], fours[1]);
        let mut scores = [0.0; STRIP];
        _mm256_storeu_ps(scores.as_mut_ptr(), _mm256_add_ps(lower, upper));
        scores
    }
}
