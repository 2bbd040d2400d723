//! Queries quantized to 8 bits, and their integer dot products with quantized cached latents.
//!
//! Heads are lanes: one instruction multiplies four quants of a cached row with four quants of each
//! of sixteen heads, so nothing is summed across a register. A head's query has a scale per
//! [`GROUP`] elements: their largest magnitude / 127.
#![allow(unsafe_code, reason = "generic over instruction sets: see `Simd`")]

use crate::MatrixView;
use crate::activation::code_scale;
use crate::attention::args::HEADS;
use crate::attention::scratch::words;
use crate::attention::unroll::unrolled;
use crate::simd::Simd;

/// Elements of a query with one scale.
const GROUP: usize = 128;

/// Bytes of a cached int8 row of nearly every published MLA model: 512 + 2 · 64 + 4. With a
/// constant stride, the addresses of sixteen rows are one register and constant offsets.
pub(super) const LATENT_ROW: usize = 644;

/// Quantized queries of all heads.
pub(crate) struct QuantizedQueries<'a> {
    /// Per four elements a line of four quants of each head.
    quants: &'a [u32],
    /// Per group a line of −128 · Σ quants of each head: see [`Simd::load_init_acc`].
    biases: &'a [i32],
    /// Per group a line of scales.
    scales: &'a [f32],
    /// Elements of a query.
    width: usize,
}

/// Elements of scratch that quantized queries of `width` elements take.
pub(crate) fn queries_len(width: usize) -> usize {
    HEADS * (2 * width.next_multiple_of(GROUP) / 4 + 2 * width.div_ceil(GROUP))
}

impl<'a> QuantizedQueries<'a> {
    /// Quantizes the first `width` elements of each query, times `scale`, into `memory` of
    /// [`queries_len`] elements.
    #[inline(always)]
    pub(crate) fn new(
        q: &MatrixView<'_>,
        width: usize,
        scale: f32,
        memory: &'a mut [f32],
    ) -> QuantizedQueries<'a> {
        let (padded, groups) = (width.next_multiple_of(GROUP), width.div_ceil(GROUP));
        let (scales, rest) = memory.split_at_mut(HEADS * groups);
        let (biases, rest) = words(rest).split_at_mut(HEADS * groups);
        let (by_head, quants) = rest.split_at_mut(HEADS * padded / 4);
        for (head, line) in by_head.chunks_exact_mut(padded / 4).enumerate() {
            let row = if head < q.rows() { &q.row(head)[..width] } else { &[] };
            for (group, line) in line.chunks_exact_mut(GROUP / 4).enumerate() {
                let mut elements = [0.0; GROUP];
                let row = &row[(group * GROUP).min(row.len())..((group + 1) * GROUP).min(row.len())];
                elements[..row.len()].copy_from_slice(row);
                let (factor, bias) = quantize(&elements, line);
                scales[group * HEADS + head] = factor * scale;
                biases[group * HEADS + head] = bias as u32;
            }
        }
        transpose_words(by_head, padded / 4, quants);
        QuantizedQueries { quants, biases: signed(biases), scales, width }
    }

    /// Dot products of `count` rows, `stride` bytes apart, with all heads, a line of heads per row;
    /// the scales of the rows are left out. Prefetches one cache line from `ahead` on per
    /// `PREFETCH_EVERY` steps of four elements.
    ///
    /// # Safety
    /// As for [`Simd`]. Each row has the queries' width in readable bytes, rounded up to a multiple
    /// of four.
    #[inline(always)]
    pub(crate) unsafe fn qk<S: Simd, const PREFETCH_EVERY: usize>(
        &self,
        (from, stride): (*const u8, usize),
        count: usize,
        scores: &mut [f32],
        ahead: &mut *const u8,
    ) {
        assert!(scores.len() >= count * HEADS, "a line of scores for each row");
        let mut row = 0;
        while row < count {
            macro_rules! tile {
                ($rows:literal) => {{
                    // SAFETY: `row + $rows` is at most `count`, and `scores` has a line for each,
                    // as asserted above.
                    unsafe {
                        let (from, out) = (from.add(row * stride), scores.as_mut_ptr().add(row * HEADS));
                        match stride {
                            LATENT_ROW => {
                                self.tile::<S, $rows, LATENT_ROW, PREFETCH_EVERY>(from, stride, out, ahead)
                            }
                            _ => self.tile::<S, $rows, 0, PREFETCH_EVERY>(from, stride, out, ahead),
                        }
                    }
                    row += $rows;
                }};
            }
            // Up to twice as many rows as in matmul, where the quants of a sub-block take registers
            // too.
            match (count - row).min(2 * S::MR) {
                16.. => tile!(16),
                4.. => tile!(4),
                _ => tile!(1),
            }
        }
    }

    /// A register tile of `R` rows. `STRIDE` is the stride if it is a compile-time constant, else
    /// 0.
    ///
    /// # Safety
    /// As for [`qk`](Self::qk), of `R` rows; `out` has a line for each.
    #[inline(always)]
    unsafe fn tile<S: Simd, const R: usize, const STRIDE: usize, const PREFETCH_EVERY: usize>(
        &self,
        from: *const u8,
        stride: usize,
        out: *mut f32,
        ahead: &mut *const u8,
    ) {
        let stride = if STRIDE > 0 { STRIDE } else { stride };
        for (group, first) in (0..self.width).step_by(GROUP).enumerate() {
            // SAFETY: quants, biases and scales have a line per four elements or per group, as
            // `new` made them; rows and `out` by this function's contract.
            unsafe {
                let mut acc = [S::load_init_acc(self.biases.as_ptr().add(group * HEADS)); R];
                let quants = self.quants.as_ptr().add(first / 4 * HEADS);
                for four in 0..(self.width - first).min(GROUP).div_ceil(4) {
                    let query = S::load(quants.add(four * HEADS).cast());
                    for r in 0..R {
                        acc[r] = S::dot_x_biased(acc[r], query, from.add(r * stride + first + 4 * four));
                    }
                    if four.is_multiple_of(PREFETCH_EVERY) {
                        S::prefetch_far(*ahead);
                        *ahead = ahead.wrapping_add(64);
                    }
                }
                let scale = S::load_f32(self.scales.as_ptr().add(group * HEADS));
                unrolled!(R, r => {
                    let out = out.add(r * HEADS);
                    let earlier = if group == 0 { S::splat_f32(0.0) } else { S::load_f32(out) };
                    S::store_f32(out, S::mul_add_relaxed(S::to_f32(acc[r]), scale, earlier));
                });
            }
        }
    }
}

/// Quantizes a group to 8 bits, four elements per word. Returns the scale and −128 · Σ quants; the
/// scale is NaN if an element is not finite.
#[inline(always)]
fn quantize(elements: &[f32; GROUP], out: &mut [u32]) -> (f32, i32) {
    // Bits of magnitudes compare like integers, and those of NaN are the largest.
    let mut largest = 0;
    for v in elements {
        largest = largest.max(v.to_bits() & 0x7fff_ffff);
    }
    let Some((scale, inverse)) = code_scale(f32::from_bits(largest)) else {
        out.fill(0);
        return (f32::NAN, 0);
    };
    let (mut quants, mut sum) = ([0u8; GROUP], 0);
    for (quant, v) in quants.iter_mut().zip(elements) {
        // Adding 1.5 · 2^23 (bits 0x4b40_0000) rounds to the nearest integer, ties to even, and
        // leaves it in the low bits.
        let rounded = ((v * inverse + 12_582_912.0).to_bits() as i32).wrapping_sub(0x4b40_0000);
        sum += rounded;
        *quant = rounded as u8;
    }
    for (out, four) in out.iter_mut().zip(quants.chunks_exact(4)) {
        *out = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    }
    (scale, -128 * sum)
}

/// Transposes words: from a line per head to a line of heads per word.
#[inline(always)]
pub(super) fn transpose_words(lines: &[u32], width: usize, out: &mut [u32]) {
    assert!(lines.len() == HEADS * width && out.len() >= HEADS * width, "words of all heads");
    for from in (0..width).step_by(HEADS) {
        let count = HEADS.min(width - from);
        // Squares of 16 × 16, which the compiler transposes in registers.
        let mut square = [[0; HEADS]; HEADS];
        for (head, line) in square.iter_mut().enumerate() {
            line[..count].copy_from_slice(&lines[head * width + from..][..count]);
        }
        for (i, line) in out[from * HEADS..(from + count) * HEADS].chunks_exact_mut(HEADS).enumerate() {
            for (head, word) in line.iter_mut().enumerate() {
                *word = square[head][i];
            }
        }
    }
}

/// The same memory as signed words.
#[inline(always)]
fn signed(words: &[u32]) -> &[i32] {
    // SAFETY: u32 and i32 have the same size and alignment, and every bit pattern is valid for
    // both.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
}
