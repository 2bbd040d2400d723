//! Parsing of durations.

use std::time::Duration;

/// Parses a duration such as `30`, `30s`, `5m`, `1h30m` or `500ms`. Without a unit it is in
/// seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        seconds += number
            * match &rest[..end] {
                "" | "s" => 1.0,
                "ms" => 1e-3,
                "m" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                _ => return None,
            };
        rest = &rest[end..];
    }
    // Refuses overflow, infinity and NaN.
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in
            [("0", 0.0), ("30", 30.0), (" 5m ", 300.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("500ms", 0.5)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        // The last one overflows a `Duration`.
        for text in ["", "-1", "m", "5 m", "5x", "1h-3m", "1e99999h", "99999999999999999999999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
