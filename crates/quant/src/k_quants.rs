//! The K-formats of 256 numbers: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K.
//!
//! ```text
//! Q2_K  16 × (scale 4 bits, min 4 bits) | 64 × four 2-bit codes | d f16 | dmin f16      d·scale·code − dmin·min
//! Q3_K  32 × eight third bits | 64 × four 2-bit codes | 12 scale bytes | d f16         d·scale·(code − 4)
//! Q4_K  d f16 | dmin f16 | 12 scale bytes | 128 × two 4-bit codes                     d·scale·code − dmin·min
//! Q5_K  d f16 | dmin f16 | 12 scale bytes | 32 × eight fifth bits | 128 × nibbles       the same
//! Q6_K  128 × low nibbles | 64 × upper bits | 16 × scale i8 | d f16                     d·scale·(code − 32)
//! Q8_K  d f32 | 256 × i8 | 16 × i16 sums                                              d·code
//! ```

use crate::k_scales::{pack_q3_scales, pack_scales_mins, unpack_q3_scales, unpack_scales_mins};
use half::f16;

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn put_half(out: &mut [u8], at: usize, value: f32) -> f32 {
    let rounded = f16::from_f32(value);
    out[at..at + 2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

fn twelve(bytes: &[u8]) -> [u8; 12] {
    std::array::from_fn(|i| bytes[i])
}

pub(crate) fn decode_q2_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(84).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half(block, 80), half(block, 82));
        for (g, out) in out.chunks_exact_mut(16).enumerate() {
            let (scale, min) = (d * f32::from(block[g] & 15), dmin * f32::from(block[g] >> 4));
            for (i, out) in out.iter_mut().enumerate() {
                let n = g * 16 + i;
                let code = (block[16 + n / 128 * 32 + n % 32] >> (n % 128 / 32 * 2)) & 3;
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

pub(crate) fn decode_q3_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(110).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 108);
        let scales = unpack_q3_scales(&twelve(&block[96..108]));
        for (g, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(scales[g]);
            for (i, out) in out.iter_mut().enumerate() {
                let n = g * 16 + i;
                let low = (block[32 + n / 128 * 32 + n % 32] >> (n % 128 / 32 * 2)) & 3;
                let third = (block[n % 32] >> (n / 32)) & 1;
                *out = scale * f32::from((low | (third << 2)) as i8 - 4);
            }
        }
    }
}

pub(crate) fn decode_q4_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(144).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half(block, 0), half(block, 2));
        let (scales, mins) = unpack_scales_mins(&twelve(&block[4..16]));
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            let shift = g % 2 * 4;
            for (out, byte) in out.iter_mut().zip(&block[16 + g / 2 * 32..]) {
                *out = scale * f32::from((byte >> shift) & 15) - min;
            }
        }
    }
}

pub(crate) fn decode_q5_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(176).zip(out.chunks_exact_mut(256)) {
        let (d, dmin) = (half(block, 0), half(block, 2));
        let (scales, mins) = unpack_scales_mins(&twelve(&block[4..16]));
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = (d * f32::from(scales[g]), dmin * f32::from(mins[g]));
            let shift = g % 2 * 4;
            for (i, out) in out.iter_mut().enumerate() {
                let code = ((block[48 + g / 2 * 32 + i] >> shift) & 15) | (((block[16 + i] >> g) & 1) << 4);
                *out = scale * f32::from(code) - min;
            }
        }
    }
}

pub(crate) fn decode_q6_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(210).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 208);
        for (g, out) in out.chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(block[192 + g] as i8);
            for (i, out) in out.iter_mut().enumerate() {
                let n = g * 16 + i;
                let (part, line, l) = (n / 128, n % 128 / 32, n % 32);
                let low = (block[part * 64 + line % 2 * 32 + l] >> (line / 2 * 4)) & 15;
                let high = (block[128 + part * 32 + l] >> (2 * line)) & 3;
                *out = scale * f32::from((low | (high << 4)) as i8 - 32);
            }
        }
    }
}

pub(crate) fn decode_q8_k(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(292).zip(out.chunks_exact_mut(256)) {
        let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        for (out, code) in out.iter_mut().zip(&block[4..260]) {
            *out = d * f32::from(*code as i8);
        }
    }
}

/// Scale and minimum of a sub-block by weighted least squares over several candidates: (scale ≥ 0, min ≥ 0).
fn fit_with_minimum(x: &[f32], levels: f32) -> (f32, f32) {
    let min = x.iter().copied().fold(0.0f32, f32::min);
    let max = x.iter().copied().fold(min, f32::max);
    if max <= min {
        return (0.0, -min);
    }
    let weight = |v: f32| v.abs() + (max - min) * 0.1;
    let mut best = (f32::INFINITY, 0.0, 0.0);
    for step in 0..=20 {
        let inverse = (levels + 0.1 * (step as f32 - 10.0)) / (max - min);
        let code = |v: f32| ((v - min) * inverse).round().clamp(0.0, levels);
        let (mut w, mut wx, mut wc, mut wcc, mut wcx) = (0.0f32, 0.0, 0.0, 0.0, 0.0);
        for &v in x {
            let (k, c) = (weight(v), code(v));
            w += k;
            wx += k * v;
            wc += k * c;
            wcc += k * c * c;
            wcx += k * c * v;
        }
        let (mut scale, mut low) = (0.0, f32::INFINITY);
        let determinant = w * wcc - wc * wc;
        // Equal codes leave scale and minimum undetermined, but rounding seldom makes the determinant exactly zero then.
        if determinant > 1e-4 * w * wcc {
            scale = (w * wcx - wx * wc) / determinant;
            low = (wcc * wx - wc * wcx) / determinant;
        }
        if low > 0.0 {
            low = 0.0;
            scale = if wcc > 0.0 { wcx / wcc } else { 0.0 };
        }
        let error: f32 = x.iter().map(|&v| weight(v) * (scale * code(v) + low - v).powi(2)).sum();
        if error < best.0 {
            best = (error, scale, -low);
        }
    }
    if best.0.is_finite() { (best.1, best.2) } else { ((max - min) / levels, -min) }
}

/// Scale of a sub-block with codes from −n to n − 1, by weighted least squares over several candidates.
fn fit_symmetric(x: &[f32], n: f32) -> f32 {
    let extreme = x.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    if extreme == 0.0 || !extreme.is_finite() {
        return 0.0;
    }
    let mut best = (f32::INFINITY, extreme / -n);
    for step in -9..=9 {
        let inverse = -(n + 0.1 * step as f32) / extreme;
        let (mut cx, mut cc) = (0.0f32, 0.0);
        for &v in x {
            let c = (v * inverse).round().clamp(-n, n - 1.0);
            cx += v * v * c * v;
            cc += v * v * c * c;
        }
        if cc > 0.0 {
            let scale = cx / cc;
            let error: f32 = x
                .iter()
                .map(|&v| v * v * (scale * (v * inverse).round().clamp(-n, n - 1.0) - v).powi(2))
                .sum();
            if error < best.0 {
                best = (error, scale);
            }
        }
    }
    best.1
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 || !d.is_finite() { 0.0 } else { 1.0 / d }
}

/// Scales and minimums of all sub-blocks, quantised against the largest of each; with the block's two factors.
fn scales_and_mins<const N: usize>(x: &[f32], levels: f32, top: f32) -> ([u8; N], [u8; N], f32, f32) {
    let fits: [(f32, f32); N] =
        std::array::from_fn(|g| fit_with_minimum(&x[g * (256 / N)..(g + 1) * (256 / N)], levels));
    let largest = |pick: fn(&(f32, f32)) -> f32| fits.iter().map(pick).fold(0.0f32, f32::max);
    let (d, dmin) = (largest(|f| f.0) / top, largest(|f| f.1) / top);
    let (id, im) = (inverse(d), inverse(dmin));
    let code = |v: f32| v.round().clamp(0.0, top) as u8;
    (fits.map(|f| code(f.0 * id)), fits.map(|f| code(f.1 * im)), d, dmin)
}

/// The code nearest to `v` under a scale and a minimum.
fn nearest(v: f32, scale: f32, min: f32, levels: f32) -> u8 {
    ((v + min) * inverse(scale)).round().clamp(0.0, levels) as u8
}

pub(crate) fn encode_q2_k(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(84)) {
        let (scales, mins, d, dmin) = scales_and_mins::<16>(x, 3.0, 15.0);
        let (d, dmin) = (put_half(out, 80, d), put_half(out, 82, dmin));
        out[16..80].fill(0);
        for g in 0..16 {
            out[g] = scales[g] | (mins[g] << 4);
        }
        for (n, &v) in x.iter().enumerate() {
            let code = nearest(v, d * f32::from(scales[n / 16]), dmin * f32::from(mins[n / 16]), 3.0);
            out[16 + n / 128 * 32 + n % 32] |= code << (n % 128 / 32 * 2);
        }
    }
}

pub(crate) fn encode_q3_k(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(110)) {
        let fits: [f32; 16] = std::array::from_fn(|g| fit_symmetric(&x[g * 16..(g + 1) * 16], 4.0));
        let extreme = fits.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
        let d = put_half(out, 108, extreme / -32.0);
        let id = inverse(d);
        let scales = fits.map(|f| (f * id).round().clamp(-32.0, 31.0) as i8);
        out[96..108].copy_from_slice(&pack_q3_scales(&scales));
        out[..96].fill(0);
        for (n, &v) in x.iter().enumerate() {
            let scale = d * f32::from(scales[n / 16]);
            let code = ((v * inverse(scale)).round().clamp(-4.0, 3.0) as i8 + 4) as u8;
            out[32 + n / 128 * 32 + n % 32] |= (code & 3) << (n % 128 / 32 * 2);
            out[n % 32] |= (code >> 2) << (n / 32);
        }
    }
}

pub(crate) fn encode_q4_k(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(144)) {
        let (scales, mins, d, dmin) = scales_and_mins::<8>(x, 15.0, 63.0);
        let (d, dmin) = (put_half(out, 0, d), put_half(out, 2, dmin));
        out[4..16].copy_from_slice(&pack_scales_mins(&scales, &mins));
        out[16..].fill(0);
        for (n, &v) in x.iter().enumerate() {
            let g = n / 32;
            let code = nearest(v, d * f32::from(scales[g]), dmin * f32::from(mins[g]), 15.0);
            out[16 + g / 2 * 32 + n % 32] |= code << (g % 2 * 4);
        }
    }
}

pub(crate) fn encode_q5_k(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(176)) {
        let (scales, mins, d, dmin) = scales_and_mins::<8>(x, 31.0, 63.0);
        let (d, dmin) = (put_half(out, 0, d), put_half(out, 2, dmin));
        out[4..16].copy_from_slice(&pack_scales_mins(&scales, &mins));
        out[16..].fill(0);
        for (n, &v) in x.iter().enumerate() {
            let g = n / 32;
            let code = nearest(v, d * f32::from(scales[g]), dmin * f32::from(mins[g]), 31.0);
            out[48 + g / 2 * 32 + n % 32] |= (code & 15) << (g % 2 * 4);
            out[16 + n % 32] |= (code >> 4) << g;
        }
    }
}

pub(crate) fn encode_q6_k(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(210)) {
        let fits: [f32; 16] = std::array::from_fn(|g| fit_symmetric(&x[g * 16..(g + 1) * 16], 32.0));
        let extreme = fits.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
        let d = put_half(out, 208, extreme / -128.0);
        let id = inverse(d);
        out[..192].fill(0);
        for (g, fit) in fits.iter().enumerate() {
            out[192 + g] = (fit * id).round().clamp(-128.0, 127.0) as i8 as u8;
        }
        for (n, &v) in x.iter().enumerate() {
            let scale = d * f32::from(out[192 + n / 16] as i8);
            let code = ((v * inverse(scale)).round().clamp(-32.0, 31.0) as i8 + 32) as u8;
            let (part, line, l) = (n / 128, n % 128 / 32, n % 32);
            out[part * 64 + line % 2 * 32 + l] |= (code & 15) << (line / 2 * 4);
            out[128 + part * 32 + l] |= (code >> 4) << (2 * line);
        }
    }
}

pub(crate) fn encode_q8_k(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(292)) {
        let extreme = x.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
        let id = if extreme == 0.0 { 0.0 } else { -127.0 / extreme };
        out[..4].copy_from_slice(&inverse(id).to_le_bytes());
        let mut sums = [0i16; 16];
        for (n, &v) in x.iter().enumerate() {
            let code = (v * id).round().clamp(-128.0, 127.0) as i8;
            out[4 + n] = code as u8;
            sums[n / 16] += i16::from(code);
        }
        for (out, sum) in out[260..].chunks_exact_mut(2).zip(sums) {
            out.copy_from_slice(&sum.to_le_bytes());
        }
    }
}
