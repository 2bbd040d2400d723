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
