//! Writing to standard output and standard error. A broken pipe of standard output ends the command
//! quietly; errors of standard error are ignored. On a terminal, long lines are wrapped between
//! words.
//!
//! Output may contain names from model files: control characters are escaped, see
//! [`latent_types::printable`]. Settings that a library names are printed as flags.

use crate::flags::in_flags;
use anyhow::{Context, Result};
use latent_types::{printable, printable_lines, printable_stream};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, Write, stderr, stdout};

/// Columns if the terminal does not report its size.
const DEFAULT_COLUMNS: usize = 80;

/// Indentation of continued lines without a heading.
const CONTINUATION_INDENT: usize = 4;

/// Prints one line.
pub(crate) fn line(text: &str) -> Result<()> {
    raw(&format!("{}\n", printable(&in_flags(text))))
}

/// Prints one line, in a colour if the terminal shows colours.
pub(crate) fn line_in_colour(text: &str, colour: Option<Colour>) -> Result<()> {
    match colour.filter(|_| has_colours(stdout().is_terminal())) {
        Some(colour) => raw(&format!("{}\n", coloured(&printable(text), colour))),
        None => line(text),
    }
}

/// Prints text of several lines.
pub(crate) fn multiline(text: &str) -> Result<()> {
    raw(&printable_lines(&in_flags(text)))
}

/// Streams a model's text.
pub(crate) fn stream(text: &str) -> Result<()> {
    // A program behind a pipe needs the exact bytes, tabs and control characters included. A
    // terminal would execute escape sequences that a model writes.
    if stdout().is_terminal() { raw(&printable_stream(text)) } else { raw(text) }
}

/// Writes text with control sequences to a terminal. Only for sequences that this program made.
pub(crate) fn controls(text: &str) -> Result<()> {
    raw(text)
}

fn raw(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    // Standard output is line-buffered: without a flush a streamed token would show only at the
    // next line end.
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")
}

/// Prints a value as JSON, indented, while it is serialized.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut out = json_writer();
    let written = serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from);
    written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).context("standard output")
}

/// A writer for JSON that escapes control characters.
pub(crate) fn json_writer() -> impl Write {
    // In JSON from serde, unprintable characters occur only within strings, where `\uXXXX` is a
    // valid escape. Line feeds between the values stay.
    EscapingFormatter(BufWriter::new(stdout().lock()))
}

/// Escapes the characters that [`printable`] would, as JSON does.
struct EscapingFormatter<W>(W);

impl<W: Write> Write for EscapingFormatter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The serializer writes whole characters, so no multi-byte character is split between two
        // calls.
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        // Borrowed means that nothing needs an escape, which is the usual case.
        if matches!(printable_lines(text), Cow::Borrowed(_)) {
            self.0.write_all(bytes)?;
            return Ok(bytes.len());
        }
        for c in text.chars() {
            let mut buffer = [0; 4];
            let own = c.encode_utf8(&mut buffer);
            if c == '\n' || printable(own).starts_with(c) {
                self.0.write_all(own.as_bytes())?;
            } else {
                // JSON has only 16-bit escapes: characters beyond U+FFFF are surrogate pairs.
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(self.0, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints text that clap has laid out. Styles are kept if the terminal has colours.
pub(crate) fn laid_out(text: &str, to_stderr: bool) -> Result<()> {
    // Clap's errors contain the user's arguments, and its help the values of environment variables:
    // `styled` escapes every sequence other than a style.
    if to_stderr {
        let _ = stderr().write_all(styled(text, has_colours(stderr().is_terminal())).as_bytes());
        return Ok(());
    }
    raw(&styled(text, has_colours(stdout().is_terminal())))
}

/// Whether to use colours.
fn has_colours(terminal: bool) -> bool {
    // https://no-color.org: any non-empty value of NO_COLOR switches colours off. Emacs' M-x shell
    // sets TERM=dumb and prints escape sequences as text. Windows sets no TERM, so its absence
    // means colours.
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Escapes all control sequences except SGR styles, which are removed unless `coloured`.
fn styled(text: &str, coloured: bool) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut safe = printable_lines(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let (style, rest) =
            // An SGR sequence is ESC [, digits and semicolons, and a final m. Any other final byte
            // moves the cursor, erases or sets a mode.
            part.split_at(part.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(part.len()));
        match rest.strip_prefix('m') {
            Some(rest) => {
                if coloured {
                    safe.push_str(&format!("\u{1b}[{style}m"));
                }
                safe.push_str(&printable_lines(rest));
            }
            None => safe.push_str(&printable_lines(&format!("\u{1b}[{part}"))),
        }
    }
    safe
}

/// A writer for logs: each event becomes one line of standard error.
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        // `note` adds the line end itself, and would print the event's own one as an escape.
        note(String::from_utf8_lossy(event).trim_end_matches('\n'));
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Colours of a terminal.
#[derive(Clone, Copy)]
pub(crate) enum Colour {
    Green,
    Yellow,
    Red,
}

fn coloured(text: &str, colour: Colour) -> String {
    let code = match colour {
        Colour::Green => "32",
        Colour::Yellow => "1;33",
        Colour::Red => "1;31",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Writes one line to standard error. A leading `error:` or `warning:` is coloured.
pub(crate) fn note(text: &str) {
    let text = in_flags(text);
    let text = printable(&text);
    // Errors of the write are ignored below: a full disk or a closed pipe of the log must not stop
    // a server.
    let marked = [("error:", Colour::Red), ("warning:", Colour::Yellow)]
        .into_iter()
        .find_map(|(word, colour)| Some((word, colour, text.strip_prefix(word)?)))
        .filter(|_| has_colours(stderr().is_terminal()));
    let _ = match marked {
        Some((word, colour, rest)) => writeln!(stderr(), "{}{rest}", coloured(word, colour)),
        None => writeln!(stderr(), "{text}"),
    };
}

/// Prints text on standard error, wrapped between words on a terminal.
pub(crate) fn say(text: &str) {
    for line in in_flags(text).split('\n') {
        if stderr().is_terminal() {
            wrapped("", 2, line, width()).iter().for_each(|part| note(part));
        } else {
            note(line);
        }
    }
}

/// Joins lines.
pub(crate) fn joined<T: AsRef<str>>(lines: &[T]) -> String {
    // Line feeds within an item are escaped, so that each item stays one line.
    lines.iter().map(|line| printable(line.as_ref())).collect::<Vec<_>>().join("\n")
}

/// Prints lines. On a terminal, long lines are wrapped and continued below their own text. A pipe
/// gets one line per item.
pub(crate) fn lines(text: &str) -> Result<()> {
    lines_in_colour(text, |_| None)
}

/// Prints items as [`lines`] does, one per line.
pub(crate) fn items<T: AsRef<str>>(items: &[T]) -> Result<()> {
    lines(&(joined(items) + "\n"))
}

/// Prints lines as [`lines`] does. `colour` chooses the colour of each line if the terminal has
/// colours.
pub(crate) fn lines_in_colour(text: &str, colour: impl Fn(&str) -> Option<Colour>) -> Result<()> {
    if !stdout().is_terminal() {
        // Wrapped lines would break `grep` and `cut` behind a pipe.
        return multiline(text);
    }
    let (columns, colours) = (width(), has_colours(stdout().is_terminal()));
    let mut whole = String::with_capacity(text.len());
    for line in printable_lines(&in_flags(text)).lines() {
        let at = hang(line, columns);
        let colour = colour(line).filter(|_| colours);
        for part in wrapped("", at, line, columns) {
            whole.push_str(&colour.map_or_else(|| part.clone(), |colour| coloured(&part, colour)));
            whole.push('\n');
        }
    }
    raw(&whole)
}

/// Columns of the terminal, or 80.
pub(crate) fn width() -> usize {
    let size = stdout().is_terminal().then(|| terminal_size::terminal_size_of(stdout())).flatten();
    // Below 20 columns wrapped text is unreadable.
    size.map_or(DEFAULT_COLUMNS, |(width, _)| usize::from(width.0)).max(20)
}

/// Columns and rows of the terminal that standard output is, or 80 and 24.
pub(crate) fn size() -> (usize, usize) {
    let size = stdout().is_terminal().then(|| terminal_size::terminal_size_of(stdout())).flatten();
    // A terminal of unknown size (a serial console, some pty wrappers) reports 0.
    let size = size.map(|(width, height)| (usize::from(width.0), usize::from(height.0)));
    let (columns, rows) = size.unwrap_or_default();
    (if columns == 0 { DEFAULT_COLUMNS } else { columns }, if rows == 0 { 24 } else { rows })
}

/// Wraps a text between words into lines of at most `columns`; a longer word is not cut. The first
/// line begins with `heading`, the others are indented.
pub(crate) fn wrapped(heading: &str, indent: usize, text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = heading.to_owned();
    let mut fresh = true;
    // Runs of spaces are kept, because they may align columns of a table.
    for word in text.split(' ') {
        if !fresh && !word.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)).trim_end().to_owned());
        } else if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    lines.push(line);
    lines
}

/// The column where a line's text begins: after the last gap of several spaces in its first half.
fn hang(line: &str, columns: usize) -> usize {
    let (mut at, mut blanks) = (0, 0);
    // A text column that begins in the right half would leave too little room for wrapped lines.
    for (column, c) in line.chars().take(columns / 2).enumerate() {
        if c != ' ' && blanks > 1 && column > blanks {
            at = column;
        }
        blanks = if c == ' ' { blanks + 1 } else { 0 };
    }
    if at == 0 { CONTINUATION_INDENT } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wrap_between_words_with_a_hanging_indent() {
        let text = "attention      128 heads, q_lora 1536, kv_lora 512";
        assert_eq!(hang(text, 40), 15);
        let lines = wrapped("", 15, text, 40);
        assert_eq!(lines, ["attention      128 heads, q_lora 1536,", "               kv_lora 512"]);
        assert_eq!(wrapped("", 15, text, 80), [text]);
        let finding = "A02 circuit, y: nothing reads what rms_norm makes";
        assert_eq!(hang(finding, 24), 4);
        let lines = wrapped("", 4, finding, 24);
        assert_eq!(lines, ["A02 circuit, y: nothing", "    reads what rms_norm", "    makes"]);
        assert_eq!(hang("   1564        layer 61 predicts", 60), 15);
        assert_eq!(hang("  name: 3 NaN", 60), 4);
    }

    #[test]
    fn clap_output_keeps_styles_and_escapes_other_sequences() {
        let text = "\u{1b}[1m\u{1b}[32mUsage:\u{1b}[0m x\u{1b}[2Jy\u{1b}]0;t\u{7}\u{202e}\n  z\u{1b}[";
        assert_eq!(styled(text, false), "Usage: x\\u{1b}[2Jy\\u{1b}]0;t\\u{7}\\u{202e}\n  z\\u{1b}[");
        assert!(styled(text, true).starts_with("\u{1b}[1m\u{1b}[32mUsage:\u{1b}[0m x\\u{1b}[2Jy"));
    }

    #[test]
    fn a_heading_comes_first_and_a_long_word_is_not_cut() {
        assert_eq!(wrapped("A: ", 3, "one two", 8), ["A: one", "   two"]);
        let path = "/a/path/that/is/far/too/long";
        assert_eq!(
            wrapped("A: ", 3, &format!("in {path} there"), 12),
            ["A: in", &format!("   {path}"), "   there"]
        );
    }
}
