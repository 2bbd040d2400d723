//! Expanded keys and values of bf16, in the panels of [`bf16_layout`](crate::bf16_layout).

use super::KvElement;
use crate::bf16_layout::{self, K_STEP, KV_BLOCK, PANEL};
use crate::kv_cache::load_part;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use latent_types::{CacheRow, CacheType};
use std::ops::Range;

/// Blocks of 128 cached rows: four panels of keys; values as panels of 32 elements, of four k-steps
/// each.
impl KvElement for bf16 {
    const KV_BLOCK: usize = KV_BLOCK;
    const Q_TILE: usize = 256;
    const ZERO: bf16 = bf16::ZERO;

    fn padded(width: usize) -> usize {
        width.next_multiple_of(K_STEP)
    }

    fn key_offset(width: usize, row: usize, n: usize) -> usize {
        bf16_layout::key_offset(width, row, n)
    }

    fn value_offset(width: usize, row: usize, n: usize) -> usize {
        bf16_layout::value_offset(width, row, n)
    }

    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [bf16]) {
        if row.ty == CacheType::Bf16 {
            let bytes = &bytes[first * 2..(first + out.len()) * 2];
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = bf16::from_le_bytes([v[0], v[1]]);
            }
        } else {
            let mut wide = [0.0; K_STEP];
            for (i, out) in out.chunks_mut(K_STEP).enumerate() {
                let wide = &mut wide[..out.len()];
                load_part(row, bytes, first + K_STEP * i, wide);
                crate::to_bf16(wide, out.reinterpret_cast_mut());
            }
        }
    }

    fn pack_keys<'a>(
        row: CacheRow,
        rows: impl Iterator<Item = &'a [u8]>,
        elements: Range<usize>,
        out: &mut [bf16],
    ) {
        let width = elements.len();
        assert_eq!(out.len(), Self::padded(width) * KV_BLOCK, "a block of keys");
        let mut end = 0;
        for (i, bytes) in rows.take(KV_BLOCK).enumerate() {
            for n in (0..width).step_by(K_STEP) {
                let at = Self::key_offset(width, i, n);
                let (line, rest) = out[at..at + K_STEP].split_at_mut(K_STEP.min(width - n));
                Self::load(row, bytes, elements.start + n, line);
                rest.fill(bf16::ZERO);
            }
            end = i + 1;
        }
        // Missing rows of the last panel must be finite: their weights are 0, and 0 · NaN is NaN.
        // Later panels are not read.
        for row in end..end.next_multiple_of(PANEL) {
            for n in (0..width).step_by(K_STEP) {
                out[Self::key_offset(width, row, n)..][..K_STEP].fill(bf16::ZERO);
            }
        }
    }

    fn pack_values(values: &[f32], width: usize, out: &mut [bf16]) {
        let rows = values.len() / width;
        assert!(rows <= KV_BLOCK && rows * width == values.len(), "{} values of {width}", values.len());
        assert_eq!(out.len(), Self::padded(width) * KV_BLOCK, "a block of values");
        #[cfg(target_arch = "x86_64")]
        if crate::isa::Avx512Bf16::detect().is_some() {
            crate::bf16::layout::pack_values(values, width, out);
            return;
        }
        for row in 0..rows.next_multiple_of(K_STEP) {
            for n in 0..Self::padded(width) {
                let value = if row < rows && n < width { values[row * width + n] } else { 0.0 };
                out[Self::value_offset(width, row, n)] = bf16::from_f32(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    /// Checks that elements are packed at their offsets.
    fn check_layout<N: KvElement + Into<f32>>(width: usize, rows: usize) {
        let elements: Vec<f32> = (0..rows * width).map(|i| (i % 251) as f32 - 125.0).collect();
        let bytes: Vec<u8> = elements.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut keys = vec![N::ZERO; N::padded(width) * N::KV_BLOCK];
        let mut values = keys.clone();
        let row = CacheRow { ty: CacheType::F32, content: width, rope: 0 };
        N::pack_keys(row, bytes.chunks_exact(4 * width), 0..width, &mut keys);
        N::pack_values(&elements, width, &mut values);
        for row in 0..rows {
            for n in 0..width {
                let element = elements[row * width + n];
                assert_eq!(keys[N::key_offset(width, row, n)].into(), element, "key {row} {n}");
                assert_eq!(values[N::value_offset(width, row, n)].into(), element, "value {row} {n}");
            }
        }
    }

    #[test]
    fn keys_and_values_lie_where_they_are_read() {
        for (width, rows) in [(1, 1), (31, 33), (40, 64), (70, 17), (128, 63)] {
            check_layout::<f32>(width, rows);
            check_layout::<f16>(width, rows);
            check_layout::<bf16>(width, rows);
            check_layout::<bf16>(width, KV_BLOCK);
        }
    }
}
