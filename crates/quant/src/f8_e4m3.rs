//! F8_E4M3: sign, four exponent bits (bias 7), three mantissa bits; no infinities, 0x7f and 0xff are NaN (OCP FP8).

/// The number of one code.
pub fn value(code: u8) -> f32 {
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(code >> 3) & 15, f32::from(code & 7));
    match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => sign * mantissa * 2f32.powi(-9),
        _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    }
}

/// The code nearest to a number, ties to the even code; beyond 448 the largest one, NaN to NaN.
pub fn code(number: f32) -> u8 {
    if number.is_nan() {
        return 0x7f;
    }
    let sign = if number.is_sign_negative() { 0x80 } else { 0 };
    let size = number.abs().min(448.0);
    // codes 0 to 0x7e are in ascending order of their numbers
    let mut low = 0u8;
    let mut high = 0x7eu8;
    while low < high {
        let middle = low + (high - low) / 2;
        if value(middle) < size { low = middle + 1 } else { high = middle }
    }
    let above = low;
    let below = above.saturating_sub(1);
    let (up, down) = (value(above) - size, size - value(below));
    let nearest = if up < down || (up == down && above.is_multiple_of(2)) { above } else { below };
    sign | nearest
}

pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = value(*byte);
    }
}

pub(crate) fn encode(numbers: &[f32], out: &mut [u8]) {
    for (out, v) in out.iter_mut().zip(numbers) {
        *out = code(*v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_comes_back_and_extremes_are_right() {
        for c in 0..=255u8 {
            if value(c).is_nan() {
                assert_eq!(c & 0x7f, 0x7f);
            } else {
                assert_eq!(code(value(c)), c, "{c}");
            }
        }
        assert_eq!((value(0x7e), value(0x08), value(0x01)), (448.0, 2f32.powi(-6), 2f32.powi(-9)));
        assert_eq!((code(1e9), code(-1e9), code(f32::INFINITY)), (0x7e, 0xfe, 0x7e));
        assert_eq!(code(1.0625), code(1.0));
    }
}
