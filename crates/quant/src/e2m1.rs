//! E2M1, the four-bit float of MXFP4 and NVFP4: sign, two exponent bits, one mantissa bit.

/// Twice the value of each code, an integer. The formats' scale decoders return half the scale to compensate.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The code whose value times `scale` is nearest to `v`, the smaller one on a tie (so never −0); code 0 for NaN.
pub(crate) fn nearest(v: f32, scale: f32) -> u8 {
    let size = v.abs();
    // the first eight values are ascending; the others are their negatives
    let above = DOUBLED[..8].partition_point(|n| scale * f32::from(*n) < size).min(7);
    let below = above.saturating_sub(1);
    let off = |code: usize| (scale * f32::from(DOUBLED[code]) - size).abs();
    let code = if off(below) <= off(above) { below } else { above };
    if v < 0.0 && code > 0 { code as u8 + 8 } else { code as u8 }
}
