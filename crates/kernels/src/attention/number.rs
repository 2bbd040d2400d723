//! What expanded keys and values are made of.

use super::cache::load_part;
use base::{CacheRow, CacheType};
use half::f16;

/// A number of expanded keys and values: f32, or f16 where the processor multiplies f16.
pub trait Number: Copy + Send + Sync + 'static {
    /// Reads some numbers of a cached row, from `first` on.
    ///
    /// # Panics
    /// When they are beyond the row.
    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [Self]);

    /// Rounds to the nearest number, the largest where it is larger.
    fn round(from: &[f32], out: &mut [Self]);

    /// Zero.
    const ZERO: Self;
}

impl Number for f32 {
    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [f32]) {
        load_part(row, bytes, first, out);
    }

    fn round(from: &[f32], out: &mut [f32]) {
        out.copy_from_slice(from);
    }

    const ZERO: f32 = 0.0;
}

impl Number for f16 {
    fn load(row: CacheRow, bytes: &[u8], first: usize, out: &mut [f16]) {
        if row.ty == CacheType::F16 {
            let bytes = &bytes[first * 2..(first + out.len()) * 2];
            for (out, v) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = f16::from_le_bytes([v[0], v[1]]);
            }
        } else {
            let mut wide = [0.0; 16];
            for (i, out) in out.chunks_mut(16).enumerate() {
                load_part(row, bytes, first + 16 * i, &mut wide[..out.len()]);
                Self::round(&wide[..out.len()], out);
            }
        }
    }

    fn round(from: &[f32], out: &mut [f16]) {
        use half::slice::HalfFloatSliceExt;
        let largest = f16::MAX.to_f32();
        let mut bounded = [0.0; 16];
        for (from, out) in from.chunks(16).zip(out.chunks_mut(16)) {
            let bounded = &mut bounded[..from.len()];
            bounded.copy_from_slice(from);
            bounded.iter_mut().for_each(|v| *v = v.clamp(-largest, largest));
            out.convert_from_f32_slice(bounded);
        }
    }

    const ZERO: f16 = f16::ZERO;
}
