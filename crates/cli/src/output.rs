//! Writing to standard output: a reader that has gone away ends the command quietly.

use anyhow::Result;
use std::io::{Write, stdout};

/// Prints text and a newline.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// Prints text at once.
pub(crate) fn now(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a value as JSON, indented.
pub(crate) fn json(value: &serde_json::Value) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}
