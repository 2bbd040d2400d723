//! E2M1, the four-bit float of MXFP4 and NVFP4: sign, two exponent bits, one mantissa bit.

/// Twice the value of each code, which is an integer, so that kernels multiply integers. The
/// formats' scale decoders return half of the scale to compensate.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The code whose value times `scale` is nearest to `v`, the smaller one on a tie (so never −0);
/// code 0 for NaN.
pub(crate) fn nearest(v: f32, scale: f32) -> u8 {
    let size = v.abs();
    // The first eight values are ascending; the other eight are their negatives.
    let above = DOUBLED[..8].partition_point(|n| scale * f32::from(*n) < size).min(7);
    let below = above.saturating_sub(1);
    // Distances are compared in the weights' own units, as in ggml, since size / scale would be
    // rounded.
    let off = |code: usize| (scale * f32::from(DOUBLED[code]) - size).abs();
    let code = if off(below) <= off(above) { below } else { above };
    if v < 0.0 && code > 0 { code as u8 + 8 } else { code as u8 }
}

/// The code of a doubled value; never that of −0.
#[inline(always)]
pub(crate) fn code_of(doubled: f32) -> u8 {
    let size = doubled.abs();
    // Seven selections instead of a search, so that loops over weights vectorize.
    let mut code = 0;
    for (above, value) in DOUBLED[1..8].iter().enumerate() {
        code = if size >= f32::from(*value) { above as u8 + 1 } else { code };
    }
    code + if doubled < 0.0 { 8 } else { 0 }
}

/// The midpoints between the doubled values of adjacent codes.
const HALFWAY: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// [`nearest`] for an array of weights, vectorized, with a scale that is a power of two. Infinity
/// has the largest value.
// A code is the number of midpoints below the magnitude. Midpoints times a power of two are exact,
// so ties are decided as by `nearest`.
#[inline(always)]
pub(crate) fn codes<const N: usize>(x: &[f32; N], scale: f32) -> [u8; N] {
    let mut above = [0u32; N];
    for halfway in HALFWAY {
        let limit = scale * halfway;
        for i in 0..N {
            above[i] += u32::from(x[i].abs() > limit);
        }
    }
    let mut out = [0; N];
    for i in 0..N {
        let negative = u32::from(x[i] < 0.0) & u32::from(above[i] > 0);
        out[i] = (above[i] + 8 * negative) as u8;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectorized_codes_equal_the_nearest_ones() {
        for exponent in [-129, -30, -1, 0, 1, 60, 120] {
            let scale = 2f32.powi(exponent);
            let x: [f32; 32] = std::array::from_fn(|i| (i as f32 - 15.5) * 0.75 * scale);
            let ties: [f32; 32] = std::array::from_fn(|i| (i as f32 - 16.0) * 0.5 * scale);
            for x in [x, ties, [0.0; 32], [-0.0; 32], [f32::NAN; 32]] {
                assert_eq!(codes(&x, scale), x.map(|v| nearest(v, scale)), "2^{exponent} {x:?}");
            }
        }
    }
}
