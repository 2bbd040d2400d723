//! F8_E4M3: sign, four exponent bits (bias 7), three mantissa bits; no infinities, 0x7f and 0xff
//! are NaN (OCP FP8).

/// The values of all codes.
const VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (sign, exponent, mantissa) = (code as u32 >> 7 << 31, code as u32 >> 3 & 15, code as u32 & 7);
        values[code] = match (exponent, mantissa) {
            (15, 7) => f32::NAN,
            // Subnormal: eighths of the smallest normal value, 2^-6. ±1 · mantissa keeps the sign
            // of −0.
            (0, _) => f32::from_bits(sign | 0x3f80_0000) * mantissa as f32 / 512.0,
            // The exponent bias changes from 7 to 127.
            _ => f32::from_bits(sign | (exponent + 120) << 23 | mantissa << 20),
        };
        code += 1;
    }
    values
};

#[inline]
pub fn value(code: u8) -> f32 {
    VALUES[usize::from(code)]
}

/// Whether any code is NaN.
pub(crate) fn holds_nan(codes: &[u8]) -> bool {
    // Not `any`: without the early exit, the loop vectorizes.
    codes.iter().fold(false, |found, code| found | (code & 0x7f == 0x7f))
}

/// The code nearest to a value, ties to even; saturates at ±448; NaN gives NaN.
pub fn code(number: f32) -> u8 {
    if number.is_nan() {
        return 0x7f;
    }
    let sign = if number.is_sign_negative() { 0x80 } else { 0 };
    let size = number.abs().min(448.0);
    // Binary search: the values of codes 0 to 0x7e are ascending.
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
    fn every_code_has_the_value_of_its_fields() {
        for c in 0..=255u8 {
            let sign = if c & 0x80 != 0 { -1.0 } else { 1.0 };
            let (exponent, mantissa) = (i32::from(c >> 3) & 15, f32::from(c & 7));
            let truth = match exponent {
                0 => sign * mantissa * 2f32.powi(-9),
                _ => sign * (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
            };
            assert!(value(c).to_bits() == truth.to_bits() || (c & 0x7f == 0x7f && value(c).is_nan()), "{c}");
            assert_eq!(holds_nan(&[0, 0x7e, c, 0xfe]), value(c).is_nan(), "{c}");
        }
    }

    #[test]
    fn every_code_round_trips_and_extremes_saturate() {
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
