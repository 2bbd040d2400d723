//! Decimal numbers behind binary approximations.

/// The shortest decimal of a value that was stored as an f32: 1e-6 instead of 9.99999997475e-7. A
/// model then has the same config from each kind of file.
pub(super) fn written(value: f64) -> f64 {
    let short = value as f32;
    // Exact only for values that are f32; a true f64 is returned unchanged.
    if f64::from(short) == value { short.to_string().parse().unwrap_or(value) } else { value }
}

/// Removes the rounding error of arithmetic on decimals: 0.707 instead of 0.7070000000000001.
pub(super) fn tidied(value: f64) -> f64 {
    let short = (value * 1e9).round() / 1e9;
    if (short - value).abs() <= 1e-11 * value.abs().max(1.0) { short } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_an_f32_are_read_as_they_were_written() {
        for value in [1e-6, 0.0707, 2.446, 1e6, 2.827] {
            assert_eq!(written(f64::from(value as f32)), value);
        }
        assert_eq!(written(1.0 / 3.0), 1.0 / 3.0);
        assert!(written(f64::NAN).is_nan());
        assert_eq!(written(f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn rounding_errors_are_removed_and_digits_kept() {
        assert_eq!(tidied(0.7070000000000001), 0.707);
        assert_eq!(tidied(1.0 / 3.0), 1.0 / 3.0);
        assert_eq!(tidied(1.0000000001), 1.0000000001);
    }
}
