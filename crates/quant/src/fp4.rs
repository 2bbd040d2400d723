//! MXFP4 and NVFP4: four-bit floats (E2M1) under a shared scale.
//!
//! ```text
//! MXFP4  e u8 | 16 × (code i, code i + 16)               number = 2^(e − 128) · LEVELS[code]
//! NVFP4  4 × UE4M3 scale | 4 × 8 × (code i, code i + 8)   number = scale / 2 · LEVELS[code], a scale for each 16
//! ```

/// The numbers of E2M1, doubled so that they are whole: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
pub const LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn level(code: u8) -> f32 {
    f32::from(LEVELS[usize::from(code & 15)])
}

/// Half of the power of two that an E8M0 byte stands for: 2^(e − 128), since levels are doubled.
pub fn e8m0_half(e: u8) -> f32 {
    let bits = if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 };
    f32::from_bits(bits)
}

/// Half of the number that an unsigned E4M3 byte stands for; 0 for 0 and 0x7f, as ggml has it.
pub fn ue4m3_half(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3) & 15, f32::from(code & 7));
    if code == 0 || code == 0x7f {
        return 0.0;
    }
    let raw = if exponent == 0 {
        mantissa * 2f32.powi(-9)
    } else {
        (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7)
    };
    raw * 0.5
}

/// The first code whose number is nearest to `x` under a scale. The first eight levels ascend; the others are their negatives.
fn nearest(x: f32, d: f32) -> u8 {
    let size = x.abs();
    let above = LEVELS[..8].partition_point(|l| d * f32::from(*l) < size).min(7) as u8;
    let below = above.saturating_sub(1);
    let code = if (size - d * level(below)).abs() <= (d * level(above) - size).abs() { below } else { above };
    // zero has one code
    if x < 0.0 && code > 0 { code + 8 } else { code }
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |m, v| if v.abs() > m { v.abs() } else { m })
}

pub(crate) fn decode_mxfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(17).zip(out.chunks_exact_mut(32)) {
        let d = e8m0_half(block[0]);
        for i in 0..16 {
            out[i] = d * level(block[1 + i]);
            out[i + 16] = d * level(block[1 + i] >> 4);
        }
    }
}

pub(crate) fn encode_mxfp4(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(32).zip(out.chunks_exact_mut(17)) {
        let largest = largest(x);
        let e =
            if largest > 0.0 { (largest.log2().floor() - 2.0 + 127.0).clamp(0.0, 254.0) as u8 } else { 0 };
        let d = e8m0_half(e);
        out[0] = e;
        for i in 0..16 {
            out[1 + i] = nearest(x[i], d) | (nearest(x[i + 16], d) << 4);
        }
    }
}

pub(crate) fn decode_nvfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, out) in bytes.chunks_exact(36).zip(out.chunks_exact_mut(64)) {
        for (g, out) in out.chunks_exact_mut(16).enumerate() {
            let d = ue4m3_half(block[g]);
            for i in 0..8 {
                let byte = block[4 + 8 * g + i];
                out[i] = d * level(byte);
                out[i + 8] = d * level(byte >> 4);
            }
        }
    }
}

/// The scale code under which 16 numbers are met best, among those around the one that meets the largest.
fn scale_code(x: &[f32]) -> u8 {
    let wanted = largest(x) / 12.0;
    let above = (0..0x7eu8).find(|code| ue4m3_half(*code) >= wanted).unwrap_or(0x7e);
    let error = |code: u8| -> f32 {
        let d = ue4m3_half(code);
        x.iter().map(|&v| (d * level(nearest(v, d)) - v).powi(2)).sum()
    };
    let mut best = above;
    for code in above.saturating_sub(3)..=(above + 1).min(0x7e) {
        if error(code) < error(best) {
            best = code;
        }
    }
    best
}

pub(crate) fn encode_nvfp4(numbers: &[f32], out: &mut [u8]) {
    for (x, out) in numbers.chunks_exact(64).zip(out.chunks_exact_mut(36)) {
        for (g, x) in x.chunks_exact(16).enumerate() {
            out[g] = scale_code(x);
            let d = ue4m3_half(out[g]);
            for i in 0..8 {
                out[4 + 8 * g + i] = nearest(x[i], d) | (nearest(x[i + 8], d) << 4);
            }
        }
    }
}
