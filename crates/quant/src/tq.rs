//! TQ1_0 and TQ2_0: numbers −1, 0, 1 times a scale. Decode only.
//!
//! ```text
//! TQ1_0  32 + 16 bytes of five base-3 digits | 4 bytes of four | d f16
//! TQ2_0  64 bytes of four 2-bit digits | d f16
//! ```

use half::f16;

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Base-3 digit `n` of a byte that holds a fraction: multiplied up, the digit is what passes 1.
fn digit(byte: u8, n: usize) -> f32 {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let fraction = byte.wrapping_mul(POWERS[n]);
    f32::from(((u16::from(fraction) * 3) >> 8) as i8 - 1)
}

pub(crate) fn decode_tq1_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(54).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 52);
        for (i, out) in out.iter_mut().enumerate() {
            let (byte, n) = match i {
                0..160 => (block[i % 32], i / 32),
                160..240 => (block[32 + (i - 160) % 16], (i - 160) / 16),
                _ => (block[48 + (i - 240) % 4], (i - 240) / 4),
            };
            *out = d * digit(byte, n);
        }
    }
}

pub(crate) fn decode_tq2_0(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(66).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 64);
        for (i, out) in out.iter_mut().enumerate() {
            let code = (block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
            *out = d * f32::from(code as i8 - 1);
        }
    }
}
