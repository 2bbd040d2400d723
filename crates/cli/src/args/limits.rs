//! Bounds and formats of numbers, and headings of help.

use clap::builder::RangedU64ValueParser;

/// Maximum tokens of a context, prompt or answer in a flag.
// No model has more, and products with counts of sequences and bytes per token do not overflow 64
// bits.
pub(super) const MAX_TOKENS: u64 = 1 << 30;

/// Maximum tokens of one step.
pub(crate) const MAX_STEP_ROWS: u64 = 8192;

/// Maximum rows of a step that `--verify` measures: the limit of the small-batch bucket.
pub(crate) const MAX_VERIFY_ROWS: usize = 16;

/// Heading of flags that affect speed and memory.
pub(super) const PERFORMANCE: &str = "Speed and memory";

/// Heading of flags for a model on several hosts.
pub(super) const HOSTS: &str = "Several hosts (MPI)";

/// Heading of flags for developers of Latent.
pub(super) const DEVELOPER: &str = "Developer options";

/// Parses a number of tokens of at least `least`: 4096, 4k, 1M.
pub(crate) fn tokens(least: u64) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |word| count(word, least, MAX_TOKENS)
}

/// Parses a number of tokens of one step.
pub(crate) fn step_tokens(word: &str) -> Result<u16, String> {
    count(word, 1, MAX_STEP_ROWS)
}

/// A number from 1 to `most`.
pub(super) fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// A number from 0 to `most`.
pub(super) fn count_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=most)
}

/// Parses a time in seconds.
pub(super) fn seconds(word: &str) -> Result<f64, String> {
    let seconds: f64 = word.parse().map_err(|_| "expected seconds")?;
    if (0.1..=86400.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.1 to 86400 seconds".into()) }
}

/// Parses a ratio of speeds.
pub(super) fn ratio(word: &str) -> Result<f64, String> {
    let ratio = word.parse().ok().filter(|ratio| (0.01..=100.0).contains(ratio));
    ratio.ok_or_else(|| "expected a ratio such as 0.95, from 0.01 to 100".into())
}

/// Parses a number of tokens. As in llama.cpp, −1 stands for `all`.
pub(super) fn tokens_or_all(all: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |word| if word == "-1" { Ok(all) } else { count(word, 0, MAX_TOKENS) }
}

/// Parses a number of threads. As in llama.cpp, −1 is the default; it becomes 0.
pub(crate) fn threads(word: &str) -> Result<u16, String> {
    if word == "-1" { Ok(0) } else { count(word, 1, 1024) }
}

/// Parses a number within bounds, with an optional suffix k (1024) or M.
fn count<T: TryFrom<u64>>(word: &str, least: u64, most: u64) -> Result<T, String> {
    let wrong = || format!("expected a number such as {}, or with a suffix, such as 4k", least.max(512));
    let (digits, factor) = match word.char_indices().last() {
        Some((at, 'k' | 'K')) => (&word[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&word[..at], 1 << 20),
        _ => (word, 1),
    };
    // A u128 holds any u64 times the suffix, so that a huge number is reported as out of bounds.
    let number = match digits.parse::<u128>() {
        Ok(number) => number.saturating_mul(factor),
        Err(_) => return Err(wrong()),
    };
    let number = u64::try_from(number).ok().filter(|number| (least..=most).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{word} is not in {least}..={most}"))
}

/// Parses a number of bytes: 4096, 500M, 20G, 20GiB.
pub(super) fn bytes(word: &str) -> Result<u64, String> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("expected a number of bytes such as 500M or 20G".into()),
    };
    let number: u64 =
        number.parse().map_err(|_| "expected a number of bytes such as 500M or 20G".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "the number is too large".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_suffixes_and_bounds() {
        let number = |word: &str| tokens(1)(word);
        assert_eq!(
            [number("4096"), number("4k"), number("128K"), number("1M")],
            [Ok(4096), Ok(4096), Ok(131_072), Ok(1 << 20)]
        );
        assert_eq!(step_tokens("8k"), Ok(8192));
        assert_eq!((tokens_or_all(7)("-1"), tokens_or_all(7)("2k")), (Ok(7), Ok(2048)));
        assert_eq!((threads("-1"), threads("12")), (Ok(0), Ok(12)));
        for wrong in ["", "k", "-1", "4 k", "4kk", "1.5k", "four", "4g", "+", "é"] {
            assert!(number(wrong).unwrap_err().contains("such as 4k"), "{wrong}");
        }
        for far in ["0", "2048M", "99999999999999999999999", "18446744073709551615k"] {
            assert_eq!(number(far), Err(format!("{far} is not in 1..=1073741824")));
        }
        assert!(step_tokens("9k").is_err() && threads("0").is_err() && threads("-2").is_err());
    }

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("500M"), Ok(500 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert!(
            bytes("").is_err()
                && bytes("G").is_err()
                && bytes("1x").is_err()
                && bytes("99999999999T").is_err()
        );
    }
}
