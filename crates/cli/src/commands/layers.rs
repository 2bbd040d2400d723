//! The flag --layers.

use crate::exit::UsageError;
use anyhow::Result;
use std::ops::Range;

/// `A..B`, or all.
pub(super) fn layers(word: Option<&str>, count: usize) -> Result<Range<usize>> {
    let Some(word) = word else { return Ok(0..count) };
    // A half-open range, as in Rust and in the names of layers, which count from 0.
    let parsed = word.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    match parsed {
        Some(range) if range.start < range.end && range.end <= count => Ok(range),
        _ => {
            Err(UsageError(format!("--layers {word}: expected A..B with A < B ≤ {count}, such as 0..2"))
                .into())
        }
    }
}
