//! Bounded reads of standard input and of text files.

use crate::exit::UsageError;
use crate::interrupt;
use anyhow::{Context, Result};
use latent_formats::input_file;
use std::io::{BufRead, Read, stdin};
use std::path::{Path, PathBuf};

/// Maximum bytes of a text file.
// Corpora for perplexity are the largest.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Maximum bytes of a line that a user types.
const MAX_LINE_BYTES: u64 = 4096;

/// Maximum bytes of standard input.
// No context holds a prompt of this size.
const MAX_STDIN_BYTES: u64 = 64 << 20;

/// Reads a line that a user types; `None` at the end of the input.
pub(crate) fn line() -> Result<Option<String>> {
    let _at_once = interrupt::at_once();
    let mut line = String::new();
    let bytes = stdin().lock().take(MAX_LINE_BYTES).read_line(&mut line).context("standard input")?;
    Ok((bytes > 0).then_some(line))
}

/// Reads all of standard input as text.
pub(crate) fn stdin_text() -> Result<String> {
    // The read blocks without polling for signals, and there is nothing to clean up yet.
    let _at_once = interrupt::at_once();
    let mut bytes = Vec::new();
    // One byte more than the limit distinguishes a text of the limit from a longer one.
    stdin().lock().take(MAX_STDIN_BYTES + 1).read_to_end(&mut bytes).context("standard input")?;
    if bytes.len() as u64 > MAX_STDIN_BYTES {
        let problem =
            format!("standard input has more than {} MB, the limit of a prompt", MAX_STDIN_BYTES >> 20);
        return Err(UsageError(problem).into());
    }
    String::from_utf8(bytes).map_err(|_| UsageError("standard input is not UTF-8 text".into()).into())
}

/// The text of a plain file, trimmed by [`prompt`].
pub(crate) fn file_text(path: &Path) -> Result<String> {
    // All llama.cpp programs trim the file of `-f` in this way. The same file must give the same
    // tokens.
    Ok(prompt(&input_file::read_text(path, MAX_FILE_BYTES)?).to_owned())
}

/// The texts of several files, joined by line ends.
pub(crate) fn files_text(paths: &[PathBuf]) -> Result<String> {
    let (mut texts, mut bytes) = (Vec::new(), 0);
    for path in paths {
        let text = file_text(path)?;
        bytes += text.len() as u64;
        if bytes > MAX_FILE_BYTES {
            return Err(
                UsageError(format!("the files of -f have more than {} MB", MAX_FILE_BYTES >> 20)).into()
            );
        }
        texts.push(text);
    }
    Ok(texts.join("\n"))
}

/// A text from a file or a pipe, without a byte-order mark and without one final line end.
pub(crate) fn prompt(text: &str) -> &str {
    // Notepad and PowerShell write a byte-order mark, and editors and `echo` a final line end. As
    // tokens they would change the answer. Only one line end is removed: more are the author's.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::prompt;

    #[test]
    fn prompts_lose_a_byte_order_mark_and_one_line_end() {
        for (text, expected) in [
            ("a", "a"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            ("\na ", "\na "),
            ("\u{feff}a\n", "a"),
            ("a\u{feff}", "a\u{feff}"),
            ("", ""),
            ("\n", ""),
            ("\u{feff}", ""),
        ] {
            assert_eq!(prompt(text), expected, "{text:?}");
        }
    }
}
