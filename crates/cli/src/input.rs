//! Reading standard input, bounded.

use crate::exit::UsageError;
use crate::interrupt;
use anyhow::{Context, Result};
use latent_formats::input_file;
use std::io::{BufRead, Read, stdin};
use std::path::{Path, PathBuf};

/// Maximum bytes of a text: those of the corpora that models are measured on.
const MAX_FILE: u64 = 1 << 30;

/// Maximum bytes of an answer to a question.
const MAX_LINE: u64 = 4096;

/// Most bytes of standard input: far above any prompt that fits into a context.
const MAX_STDIN: u64 = 64 << 20;

/// A line that a user types; none at the end of the input.
pub(crate) fn line() -> Result<Option<String>> {
    let _at_once = interrupt::at_once();
    let mut line = String::new();
    let bytes = stdin().lock().take(MAX_LINE).read_line(&mut line).context("standard input")?;
    Ok((bytes > 0).then_some(line))
}

/// All of standard input, as text.
pub(crate) fn stdin_text() -> Result<String> {
    // there is nothing to clean up yet
    let _at_once = interrupt::at_once();
    let mut bytes = Vec::new();
    stdin().lock().take(MAX_STDIN + 1).read_to_end(&mut bytes).context("standard input")?;
    if bytes.len() as u64 > MAX_STDIN {
        let problem = format!("standard input has more than {} MB, the limit of a prompt", MAX_STDIN >> 20);
        return Err(UsageError(problem).into());
    }
    String::from_utf8(bytes).map_err(|_| UsageError("standard input is not UTF-8 text".into()).into())
}

/// The text of a plain file, as a [`prompt`]. llama.cpp reads the file of `-f` so in all of its programs.
pub(crate) fn file_text(path: &Path) -> Result<String> {
    Ok(prompt(&input_file::read_text(path, MAX_FILE)?).to_owned())
}

/// The texts of several files, joined by line ends.
pub(crate) fn files_text(paths: &[PathBuf]) -> Result<String> {
    let (mut texts, mut bytes) = (Vec::new(), 0);
    for path in paths {
        let text = file_text(path)?;
        bytes += text.len() as u64;
        if bytes > MAX_FILE {
            return Err(UsageError(format!("the files of -f have more than {} MB", MAX_FILE >> 20)).into());
        }
        texts.push(text);
    }
    Ok(texts.join("\n"))
}

/// A text from a file or a pipe without the byte-order mark at its beginning and the line end that editors and `echo` leave at its end.
pub(crate) fn prompt(text: &str) -> &str {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::prompt;

    #[test]
    fn one_line_end_and_the_mark_of_utf_8_are_no_part_of_a_prompt() {
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
