//! Formatting and parsing of numbers.

use crate::chars::is_space;
use std::fmt::Write;

/// `repr` of a float: the shortest digits that round-trip, with an exponent if the value is at
/// least 1e16 or below 1e-4.
pub(super) fn float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf" } else { "-inf" }.into();
    }
    if f != 0.0 && (f.abs() >= 1e16 || f.abs() < 1e-4) {
        return two_digits(&format!("{f:e}"));
    }
    if f.fract() == 0.0 { format!("{f:.1}") } else { f.to_string() }
}

/// Rewrites the exponent with a sign and at least two digits.
fn two_digits(text: &str) -> String {
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `%f`, `%e` or `%g` of the absolute value, in upper case if `kind` is.
pub(super) fn formatted(f: f64, kind: char, precision: usize, keep_zeros: bool) -> String {
    let f = f.abs();
    let text = if f.is_finite() {
        match kind.to_ascii_lowercase() {
            'e' => two_digits(&format!("{f:.precision$e}")),
            'g' => general(f, precision.max(1), keep_zeros),
            _ => format!("{f:.precision$}"),
        }
    } else {
        float(f)
    };
    if kind.is_ascii_uppercase() { text.to_uppercase() } else { text }
}

fn general(f: f64, precision: usize, keep_zeros: bool) -> String {
    // Take the exponent after rounding: 9.9999999 with six digits is 10, which decides the
    // notation.
    let scientific = format!("{f:.*e}", precision - 1);
    let exponent: i64 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |digits: &str| -> String {
        if keep_zeros || !digits.contains('.') {
            return digits.to_owned();
        }
        digits.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if exponent < -4 || exponent >= precision as i64 {
        let (digits, tail) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return two_digits(&format!("{}e{tail}", trim(digits)));
    }
    let places = (precision as i64 - 1 - exponent).max(0) as usize;
    trim(&format!("{f:.places$}"))
}

/// Digits of an absolute value in the base of `kind`: `b`, `o`, `x`, `X`, otherwise decimal.
pub(super) fn digits(n: u128, kind: char) -> String {
    match kind {
        'b' => format!("{n:b}"),
        'o' => format!("{n:o}"),
        'x' => format!("{n:x}"),
        'X' => format!("{n:X}"),
        _ => n.to_string(),
    }
}

/// Inserts a separator every three digits of the integer part.
pub(super) fn grouped(digits: &str, separator: char) -> String {
    let whole = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut text = String::new();
    for (at, c) in digits[..whole].chars().enumerate() {
        if at > 0 && (whole - at) % 3 == 0 {
            text.push(separator);
        }
        text.push(c);
    }
    let _ = write!(text, "{}", &digits[whole..]);
    text
}

/// Python's `int(text, base)`. `None` if the text is not a number, an error if it does not fit.
pub(crate) fn parse_integer(text: &str, base: u32) -> Option<Result<i128, ()>> {
    let text = text.trim_matches(is_space);
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let prefix = |radix: u32, name: &str| -> Option<String> {
        if base == radix || base == 0 { lower.strip_prefix(name).map(str::to_owned) } else { None }
    };
    let (digits, base) = match (prefix(16, "0x"), prefix(8, "0o"), prefix(2, "0b")) {
        (Some(rest), ..) => (rest.trim_start_matches('_').to_owned(), 16),
        (_, Some(rest), _) => (rest.trim_start_matches('_').to_owned(), 8),
        (_, _, Some(rest)) => (rest.trim_start_matches('_').to_owned(), 2),
        _ => (lower, if base == 0 { 10 } else { base }),
    };
    // A second sign must not reach `from_str_radix`, which would accept it.
    let well_formed = !digits.is_empty()
        && digits.chars().all(|c| c == '_' || c.is_digit(base))
        && !digits.starts_with('_')
        && !digits.ends_with('_')
        && !digits.contains("__");
    if !well_formed {
        return None;
    }
    // Parsed without the sign, so -2^127 is refused as too large. Its absolute value exceeds
    // i128::MAX.
    let number = i128::from_str_radix(&digits.replace('_', ""), base).map_err(|_| ());
    Some(number.map(|n| if negative { -n } else { n }))
}

/// Python's `float(text)`.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let lower = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    // Rust's parser also accepts these names, but not Python's underscores.
    let named = matches!(lower.as_str(), "inf" | "infinity" | "nan");
    let numeric = lower.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && !lower.starts_with('_')
        && !lower.ends_with('_')
        && !lower.contains("__");
    if !named && !numeric {
        return None;
    }
    text.replace('_', "").parse().ok()
}
