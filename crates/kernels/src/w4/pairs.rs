//! Products of bf16 pairs (AVX512-BF16): a look-up of sixteen-bit lanes turns a shifted word into
//! elements j and j + 4 of its eight, a pair as `vdpbf16ps` takes it. All codes are exact in bf16,
//! and scales are applied to f32 sums, so only inputs are rounded.
#![allow(
    unsafe_code,
    reason = "vector instructions over addresses that the assertions on entry keep in bounds"
)]

use super::gemm::prefetch_below;
use super::input::{HEIGHT, W4Form, W4Input};
use super::matrix::WORD;
use super::nibbles::LANES;
use super::part::W4ColumnBlock;
use crate::MatrixViewMut;
use crate::isa::isa_fn;
use crate::simd::avx512::Avx512;
use std::arch::x86_64::*;
use std::ops::Range;

pub(super) const PAIRS: usize = WORD / 2;

/// The same bits as bf16.
#[inline(always)]
fn as_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both types have 512 bits, and every bit pattern is valid for both.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
}

/// A table of 32 bf16. A look-up of 16-bit lanes uses their lowest five bits.
#[derive(Clone, Copy)]
struct PairTable {
    values: __m512i,
    /// Whether index = code + 16 − zero point. Otherwise bit 4 is that of the next code, and the
    /// table has each value twice.
    shifted: bool,
}

impl PairTable {
    #[inline(always)]
    fn new(part: &W4ColumnBlock<'_>, shifted: bool) -> PairTable {
        let mut bits = [0; 32];
        for i in 0..32 {
            let value = if shifted { i as f32 - 16.0 } else { f32::from(part.values[i % 16]) };
            // The lower half of the f32 bits of a small integer is 0, so the upper half is its
            // bf16.
            bits[i] = (value.to_bits() >> 16) as u16;
        }
        // SAFETY: both have 512 bits, of which every pattern is valid.
        PairTable { values: unsafe { std::mem::transmute::<[u16; 32], __m512i>(bits) }, shifted }
    }
}

/// Vectors of columns of a strip: with eight rows 24 accumulators, and with three vectors of
/// weights 27 of 32 registers.
const STRIP_VECTORS: usize = 3;

/// Words of K of a strip: 24 KB of pairs, a part of L1.
const STRIP_WORDS: usize = 32;

/// `y = x · W` for the columns of `part` and the rows `rows` of the input, over the inputs `k`
/// (from and to multiples of 8): a strip of weights is decoded to pairs once and multiplied with
/// all rows.
///
/// # Panics
/// When the shapes differ, or groups are not of whole words.
///
/// # Safety
/// The part has the inputs `k`; the CPU has AVX512-BF16.
pub(super) unsafe fn strips(
    part: &W4ColumnBlock<'_>,
    input: &W4Input<'_>,
    (rows, k): (Range<usize>, Range<usize>),
    y: &mut MatrixViewMut<'_>,
    (strip, sums): (&mut Vec<u32>, &mut Vec<f32>),
) {
    assert!(rows.len() == y.rows() && k.end <= input.k() && y.cols() == part.cols, "shapes of a product");
    assert!(part.group.is_multiple_of(WORD), "groups of {} in pairs", part.group);
    let (panels, _) = input.panels(W4Form::Pairs, &rows);
    let len = HEIGHT * (input.k() / 2);
    strip.resize(STRIP_WORDS * PAIRS * STRIP_VECTORS * LANES, 0);
    let mut from = 0;
    while from < part.cols {
        let vectors = ((part.cols - from) / LANES).min(STRIP_VECTORS);
        // One kernel for three vectors, and one for a single vector.
        let vectors = if vectors == STRIP_VECTORS { vectors } else { 1 };
        let tile = HEIGHT * vectors * LANES;
        let strides = PairStrides { word: PAIRS * vectors * LANES, pair: vectors * LANES, vector: LANES };
        sums.clear();
        sums.resize(rows.len().div_ceil(HEIGHT) * tile, 0.0);
        for first in k.clone().step_by(STRIP_WORDS * WORD) {
            let inputs = first..(first + STRIP_WORDS * WORD).min(k.end);
            // SAFETY: the strip has room for the words and vectors, which the part has, as is the
            // ISA, by this function's contract; panels have `k`.
            unsafe {
                decode(part, inputs.clone(), (from, vectors), (strip.as_mut_ptr(), strides));
                prefetch_below::<Avx512>(part, inputs.end, from..from + vectors * LANES);
                for (panel, sums) in panels.chunks_exact(len.max(1)).zip(sums.chunks_exact_mut(tile)) {
                    let sums = sums.as_mut_ptr();
                    match vectors {
                        STRIP_VECTORS => {
                            multiply::<STRIP_VECTORS>(part, panel, inputs.clone(), from, strip, sums)
                        }
                        _ => multiply::<1>(part, panel, inputs.clone(), from, strip, sums),
                    }
                }
            }
        }
        for (i, sums) in sums.chunks_exact(vectors * LANES).take(rows.len()).enumerate() {
            y.row_mut(i)[from..][..vectors * LANES].copy_from_slice(sums);
        }
        from += vectors * LANES;
    }
}

/// Distances in words between decoded pairs: to the next word of K, the next pair of a word, and
/// the next vector of columns.
#[derive(Clone, Copy)]
pub(super) struct PairStrides {
    pub word: usize,
    pub pair: usize,
    pub vector: usize,
}

isa_fn! { Avx512Bf16;
/// Decodes some inputs of some vectors of columns to lines of sixteen pairs.
///
/// # Safety
/// The part has the inputs and columns, and there is room at `out`; the CPU has AVX512-BF16.
pub(super) unsafe fn decode(
    part: &W4ColumnBlock<'_>,
    k: Range<usize>,
    (col, vectors): (usize, usize),
    (out, strides): (*mut u32, PairStrides),
) {
    // SAFETY: everything is inside of the part and `out` by this function's contract, as is the
    // ISA.
    unsafe {
        let table = PairTable::new(part, part.zeros.is_some());
        let mask = _mm512_set1_epi16(15);
        for (i, word) in (k.start / WORD..k.end / WORD).enumerate() {
            for v in 0..vectors {
                let col = part.first + col + v * LANES;
                let codes = _mm512_loadu_si512(part.words.as_ptr().add(word * part.stride + col).cast());
                let shift = match part.zeros {
                    Some(zeros) if table.shifted => {
                        let zeros = zeros.as_ptr().add(word * WORD / part.group * part.stride + col);
                        let zeros = _mm512_cvtepu8_epi32(_mm_loadu_si128(zeros.cast()));
                        // 16 − zero point in both halves of a lane: index = code + 16 − zero point,
                        // from 0 to 31.
                        let both = _mm512_or_si512(zeros, _mm512_slli_epi32::<16>(zeros));
                        _mm512_sub_epi16(_mm512_set1_epi16(16), both)
                    }
                    _ => _mm512_setzero_si512(),
                };
                macro_rules! pair {
                    ($pair:literal) => {{
                        let codes = _mm512_and_si512(_mm512_srli_epi16::<{ 4 * $pair }>(codes), mask);
                        let values = _mm512_permutexvar_epi16(_mm512_add_epi16(codes, shift), table.values);
                        let out = out.add(i * strides.word + $pair * strides.pair + v * strides.vector);
                        _mm512_storeu_si512(out.cast(), values);
                    }};
                }
                pair!(0);
                pair!(1);
                pair!(2);
                pair!(3);
            }
        }
    }
}
}

isa_fn! { Avx512Bf16;
/// Adds the products of a panel's inputs `k` and a strip to the panel's sums: rows of `V` vectors.
///
/// # Safety
/// The panel of [`HEIGHT`] rows has the inputs, the strip holds them decoded for `V` vectors from
/// column `col`, and there are as many `sums`. The CPU has AVX512-BF16.
unsafe fn multiply<const V: usize>(
    part: &W4ColumnBlock<'_>,
    panel: &[u32],
    k: Range<usize>,
    col: usize,
    strip: &[u32],
    sums: *mut f32,
) {
    // SAFETY: everything is inside of the panel, the strip, the part and `sums` by this function's
    // contract, as is the ISA.
    unsafe {
        let mut weights = strip.as_ptr();
        for run in part.runs(k, usize::MAX) {
            let mut x = panel.as_ptr().add(run.start * HEIGHT / 2);
            let mut acc = [[_mm512_setzero_ps(); V]; HEIGHT];
            for _ in 0..(run.end - run.start) / 2 {
                let mut values = [as_bf16(_mm512_setzero_si512()); V];
                for v in 0..V {
                    values[v] = as_bf16(_mm512_loadu_si512(weights.add(v * LANES).cast()));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = as_bf16(_mm512_set1_epi32(*x.add(r) as i32));
                    for v in 0..V {
                        acc[v] = _mm512_dpbf16_ps(acc[v], values[v], x);
                    }
                }
                weights = weights.add(V * LANES);
                x = x.add(HEIGHT);
            }
            let mut scales = [_mm512_setzero_ps(); V];
            for v in 0..V {
                let at = run.group * part.stride + part.first + col + v * LANES;
                scales[v] = part.scales.load::<Avx512>(at, part.factor);
            }
            for (r, acc) in acc.into_iter().enumerate() {
                for v in 0..V {
                    let sum = sums.add((r * V + v) * LANES);
                    _mm512_storeu_ps(sum, _mm512_fmadd_ps(acc[v], scales[v], _mm512_loadu_ps(sum)));
                }
            }
        }
    }
}
}
