//! IQ4_NL and IQ4_XS: four bits that choose one of sixteen uneven levels.
//!
//! ```text
//! IQ4_NL  d f16 | 16 × (code i, code i + 16)                          number = d · LEVELS[code]
//! IQ4_XS  d f16 | upper scale bits u16 | 4 × two lower 4 bits | 8 × 16 × nibbles   number = d · (scale − 32) · LEVELS[code]
//! ```

use half::f16;

/// The sixteen levels.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn level(code: u8) -> f32 {
    f32::from(LEVELS[usize::from(code & 15)])
}

fn put_half(out: &mut [u8], value: f32) -> f32 {
    let rounded = f16::from_f32(value);
    out[..2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

/// The code whose level is nearest to `x`, the lower of equally near ones. Levels ascend.
fn nearest(x: f32) -> u8 {
    let above = LEVELS.partition_point(|l| f32::from(*l) < x).min(15) as u8;
    let below = above.saturating_sub(1);
    if (x - level(below)).abs() <= (level(above) - x).abs() { below } else { above }
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 || !d.is_finite() { 0.0 } else { 1.0 / d }
}

/// The scale under which the levels meet the numbers best, by weighted least squares over several candidates.
fn fit(x: &[f32]) -> f32 {
    let extreme = x.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
    if extreme == 0.0 || !extreme.is_finite() {
        return 0.0;
    }
    let mut best = (f32::INFINITY, extreme / level(0));
    for (edge, step) in [0, 15].into_iter().flat_map(|edge| [-6, -3, 0, 3, 6].map(move |step| (edge, step))) {
        let inverse = (level(edge) + f32::from(step as i8)) / extreme;
        let (mut lx, mut ll) = (0.0f32, 0.0);
        for &v in x {
            let l = level(nearest(v * inverse));
            lx += v * v * l * v;
            ll += v * v * l * l;
        }
        if ll > 0.0 {
            let d = lx / ll;
            let error: f32 = x.iter().map(|&v| v * v * (d * level(nearest(v * inverse)) - v).powi(2)).sum();
            if error < best.0 {
                best = (error, d);
            }
        }
    }
    best.1
}

pub(crate) fn decode_iq4_nl(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(18).zip(out.chunks_exact_mut(32)) {
        let d = half(block, 0);
        for i in 0..16 {
            out[i] = d * level(block[2 + i]);
            out[i + 16] = d * level(block[2 + i] >> 4);
        }
    }
}

pub(crate) fn encode_iq4_nl(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(18)) {
        let id = inverse(put_half(out, fit(x)));
        for i in 0..16 {
            out[2 + i] = nearest(x[i] * id) | (nearest(x[i + 16] * id) << 4);
        }
    }
}

/// The signed scale of sub-block `g`.
fn scale(block: &[u8], g: usize) -> f32 {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let low = (block[4 + g / 2] >> (4 * (g % 2))) & 15;
    f32::from((low | ((((high >> (2 * g)) & 3) as u8) << 4)) as i8 - 32)
}

pub(crate) fn decode_iq4_xs(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(136).zip(out.chunks_exact_mut(256)) {
        let d = half(block, 0);
        for (g, out) in out.chunks_exact_mut(32).enumerate() {
            let d = d * scale(block, g);
            for i in 0..16 {
                let byte = block[8 + 16 * g + i];
                out[i] = d * level(byte);
                out[i + 16] = d * level(byte >> 4);
            }
        }
    }
}

pub(crate) fn encode_iq4_xs(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(256).zip(out.chunks_exact_mut(136)) {
        let fits: [f32; 8] = std::array::from_fn(|g| fit(&x[32 * g..32 * (g + 1)]));
        let extreme = fits.iter().fold(0.0f32, |m, v| if v.abs() > m.abs() { *v } else { m });
        let d = put_half(out, extreme / -32.0);
        out[2..8].fill(0);
        for (g, (fit, x)) in fits.iter().zip(x.chunks_exact(32)).enumerate() {
            let code = (fit * inverse(d)).round().clamp(-32.0, 31.0);
            let bits = (code as i8 + 32) as u8;
            out[4 + g / 2] |= (bits & 15) << (4 * (g % 2));
            out[2 + g / 4] |= (bits >> 4) << (2 * (g % 4));
            let id = inverse(d * code);
            for i in 0..16 {
                out[8 + 16 * g + i] = nearest(x[i] * id) | (nearest(x[i + 16] * id) << 4);
            }
        }
    }
}
