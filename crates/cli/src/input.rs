//! What commands read beside a model: standard input, bounded.

use crate::exit::Usage;
use crate::interrupt;
use anyhow::{Context, Result};
use std::io::{Read, stdin};

/// Most bytes of standard input, whatever a tokenizer says of the longest text that fits into a context.
const MAX_STDIN: usize = 64 << 20;

/// All of standard input, as text of at most `most` bytes.
///
/// # Errors
/// What the system says, text that is longer, bytes that are no UTF-8.
pub(crate) fn stdin_text(most: usize) -> Result<String> {
    let most = most.min(MAX_STDIN);
    // nothing has been done yet that would have to be put in order
    let _at_once = interrupt::at_once();
    let mut bytes = Vec::new();
    stdin().lock().take(most as u64 + 1).read_to_end(&mut bytes).context("standard input")?;
    if bytes.len() > most {
        return Err(
            Usage(format!("standard input has more than {most} bytes, which no prompt can have")).into()
        );
    }
    String::from_utf8(bytes).map_err(|_| Usage("standard input is not UTF-8 text".into()).into())
}
