//! Bounds of numbers, and the heading that several groups share.

use clap::builder::RangedU64ValueParser;

/// Most tokens of a context, prompt or answer that a flag accepts: more than any model takes, and few enough that no sum or product with
/// counts of sequences and bytes per token overflows 64 bits.
pub(crate) const MAX_TOKENS: u64 = 1 << 30;

/// Most tokens of one step.
pub(crate) const MAX_STEP_ROWS: u64 = 8192;

/// Most rows of a step that `--verify` measures: those of the batch bucket for few rows.
pub(crate) const MAX_VERIFY_ROWS: usize = 16;

/// The heading of flags that only developers of Latent need.
pub(super) const DEVELOPER: &str = "Developer options";

/// A number of tokens, at least `least`.
pub(super) fn tokens(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=MAX_TOKENS)
}

/// A number from 1 to `most`.
pub(super) fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// A time in seconds.
pub(super) fn seconds(word: &str) -> Result<f64, String> {
    let seconds: f64 = word.parse().map_err(|_| "expected seconds")?;
    if (0.1..=86400.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.1 to 86400 seconds".into()) }
}

/// A number of bytes: 4096, 500M, 20G, 20GiB.
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
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than can be counted".into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn bytes_have_units() {
        use super::bytes;
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
