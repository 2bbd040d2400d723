//! 16-bit floats by definition, independent of the code under test.

use latent_types::CacheType;

pub(crate) fn f16_value(bits: u16) -> f32 {
    float(bits, 10)
}

pub(crate) fn bf16_value(bits: u16) -> f32 {
    float(bits, 7)
}

/// The value of a 16-bit float with `mantissa` mantissa bits.
fn float(bits: u16, mantissa: u32) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let most = (1 << (15 - mantissa)) - 1;
    let exponent = i32::from(bits & 0x7fff) >> mantissa;
    let fraction = f64::from(bits & ((1 << mantissa) - 1)) / f64::from(1 << mantissa);
    let bias = most / 2;
    let value = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        e if e == most && fraction > 0.0 => f64::NAN,
        e if e == most => f64::INFINITY,
        e => (1.0 + fraction) * 2f64.powi(e - bias),
    };
    (sign * value) as f32
}

/// Rounds to the nearest value of the cache type, ties to even. For quantized types, to F16, the
/// type of their rope part.
pub(crate) fn nearest(ty: CacheType, x: f32) -> f32 {
    let (mantissa, least, largest) = match ty {
        CacheType::F32 => return x,
        CacheType::Bf16 => (7, -126, 255.0 * 2f64.powi(120)),
        _ => (10, -14, 65_504.0),
    };
    let value = f64::from(x);
    // The logarithm below needs a finite number other than 0.
    if !value.is_finite() || value == 0.0 {
        return x;
    }
    // At least the exponent of the smallest normal number, whose step subnormal numbers have too.
    let exponent = (value.abs().log2().floor() as i32).max(least);
    let step = 2f64.powi(exponent - mantissa);
    let rounded = (value / step).round_ties_even() * step;
    if rounded.abs() > largest { f32::INFINITY.copysign(x) } else { rounded as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bits_agree() {
        assert_eq!(
            [f16_value(0x3c00), f16_value(0xc000), f16_value(0x0001), f16_value(0x7bff)],
            [1.0, -2.0, 2f32.powi(-24), 65_504.0]
        );
        assert!(f16_value(0x7c01).is_nan() && f16_value(0x7c00) == f32::INFINITY);
        assert_eq!([bf16_value(0x3f80), bf16_value(0xff80)], [1.0, f32::NEG_INFINITY]);
        // Ties go to the even mantissa.
        assert_eq!(nearest(CacheType::Bf16, 1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(nearest(CacheType::Bf16, 1.0 + 3.0 / 256.0), 1.0 + 4.0 / 256.0);
        assert_eq!(nearest(CacheType::F16, 65_520.0), f32::INFINITY);
        assert_eq!(nearest(CacheType::F16, 1e-7), 2.0 * 2f32.powi(-24));
    }
}
