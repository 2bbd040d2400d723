//! Reading standard input, bounded.

use crate::exit::Usage;
use crate::interrupt;
use anyhow::{Context, Result};
use std::io::{Read, stdin};

/// Most bytes of standard input: far above any prompt that fits into a context.
const MAX_STDIN: u64 = 64 << 20;

/// All of standard input, as text.
///
/// # Errors
/// I/O errors, more text than any prompt has, invalid UTF-8.
pub(crate) fn stdin_text() -> Result<String> {
    // there is nothing to clean up yet
    let _at_once = interrupt::at_once();
    let mut bytes = Vec::new();
    stdin().lock().take(MAX_STDIN + 1).read_to_end(&mut bytes).context("standard input")?;
    if bytes.len() as u64 > MAX_STDIN {
        let problem = format!("standard input holds more than {} MB, the limit of a prompt", MAX_STDIN >> 20);
        return Err(Usage(problem).into());
    }
    String::from_utf8(bytes).map_err(|_| Usage("standard input is not UTF-8 text".into()).into())
}
