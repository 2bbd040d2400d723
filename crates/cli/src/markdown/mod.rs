//! Markdown rendered on a terminal while it is streamed.
//!
//! A line shows immediately, styled as far as its style is certain. Only what changes when more of
//! the line arrives is written again: a mark that is closed, a word that moves to the next row, the
//! widths of a table. The final screen does not depend on how the text was split into pieces
//! (tested).
//!
//! Rows that cannot be written again stay as they are: the terminal was resized, or they have
//! scrolled off the screen. The rest of such a line follows as plain text. Text above the current
//! line is never overwritten.

mod block;
mod glyph;
mod inline;
mod table;
mod wrap;

#[cfg(test)]
mod tests;

use block::Fence;
use glyph::{GlyphRow, Style, common_prefix, glyphs};
use latent_types::printable_stream;
use table::Align;

/// Maximum bytes of a line that is laid out again as it grows.
// Each piece lays out the whole line, which is quadratic.
const MAX_LINE_BYTES: usize = 4096;

/// Maximum lines of a table whose column widths follow its content. Later lines keep the widths.
const TABLE_LINES: usize = 200;

/// Spaces for a tab: the width of a real tab depends on its column, which [`glyph::width`] does not
/// know.
const TAB: &str = "    ";

/// The block that the next line belongs to.
#[derive(Clone, Debug, PartialEq)]
enum MarkdownBlock {
    Text,
    /// The previous line may be the heading of a table, and can still be rewritten.
    Heading(String),
    Table {
        lines: Vec<String>,
        align: Vec<Align>,
    },
    /// A table whose earlier rows are no longer rewritten.
    LongTable {
        widths: Vec<usize>,
        align: Vec<Align>,
    },
    Code(Fence),
}

/// Converts streamed Markdown to terminal output.
pub(crate) struct Markdown {
    colours: bool,
    block: MarkdownBlock,
    /// The received part of the current line.
    line: String,
    /// Rows that may still change. The cursor is behind the last one.
    shown: Vec<GlyphRow>,
    /// Whether the rest of the line is sent as plain text.
    frozen: bool,
    /// Bytes of the line that are shown already.
    passed: usize,
    /// Line feeds that are sent before the next output.
    // Delayed, so that an answer does not end in empty rows.
    feeds: usize,
    /// Columns and rows of the terminal.
    size: (usize, usize),
    out: String,
}

impl Markdown {
    pub(crate) fn new(colours: bool) -> Markdown {
        Markdown {
            colours,
            block: MarkdownBlock::Text,
            line: String::new(),
            shown: Vec::new(),
            frozen: false,
            passed: 0,
            feeds: 0,
            size: (80, 24),
            out: String::new(),
        }
    }

    /// The output for more text, on a terminal of this size. Control characters are escaped.
    pub(crate) fn push(&mut self, text: &str, size: (usize, usize)) -> String {
        // The size is compared per piece: SIGWINCH is not handled, and Windows has no such signal.
        let resized = size != self.size;
        self.size = size;
        if resized && !self.shown.is_empty() && !self.frozen {
            self.resized();
        }
        for c in text.chars() {
            match c {
                '\n' => self.end_line(),
                '\t' if !matches!(self.block, MarkdownBlock::Code(_)) => {
                    TAB.chars().for_each(|c| self.feed(c))
                }
                // Code keeps its tabs, so that it can be copied (a Makefile).
                '\t' => self.feed('\t'),
                c => {
                    let safe = printable_stream(c.encode_utf8(&mut [0; 4])).into_owned();
                    safe.chars().for_each(|c| self.feed(c));
                }
            }
        }
        self.preview();
        std::mem::take(&mut self.out)
    }

    /// Stops rewriting rows that were laid out for another width.
    fn resized(&mut self) {
        // Terminals reflow rows on a resize (VTE, kitty, Windows Terminal) or cut them (xterm).
        // Where the cursor ended up is unknown, so nothing above it can be rewritten.
        if !self.line.is_empty() {
            self.freeze();
            return;
        }
        self.commit();
        if let MarkdownBlock::Table { lines, align } = std::mem::replace(&mut self.block, MarkdownBlock::Text)
            && let Some((_, widths)) = table::layout(&lines, &align, self.columns(), self.colours)
        {
            self.block = MarkdownBlock::LongTable { widths, align };
        }
    }

    /// The output at the end of the text. The cursor is left behind the last row.
    pub(crate) fn finish(&mut self) -> String {
        if !self.line.is_empty() {
            self.end_line();
        }
        // A fence that the model did not close (it ran out of tokens) gets its lower border.
        if let MarkdownBlock::Code(_) = self.block {
            self.put_row(&block::border("", self.columns()));
        }
        let out = std::mem::take(&mut self.out);
        // The next answer must not continue a block of this one, such as an open table.
        *self = Markdown { size: self.size, ..Markdown::new(self.colours) };
        out
    }

    /// Columns that a row may fill.
    fn columns(&self) -> usize {
        // The last column stays empty. After a character in it, some terminals wrap immediately and
        // others (xterm) only before the next character, so the cursor's row would be unknown.
        self.size.0.saturating_sub(1).max(1)
    }

    fn feed(&mut self, c: char) {
        self.line.push(c);
        if let MarkdownBlock::Code(fence) = &self.block {
            // A line of backticks may be the closing fence, which is not shown as code. It is held
            // until another character or its end decides.
            if !fence.may_close(&self.line) {
                self.code();
            }
        } else if self.frozen {
            self.put_plain(c);
        } else if self.line.len() >= MAX_LINE_BYTES {
            self.preview();
            self.freeze();
        }
    }

    /// Sends the new part of a line of code.
    fn code(&mut self) {
        let MarkdownBlock::Code(fence) = &self.block else { return };
        // A fence in a list is indented; CommonMark removes up to its indentation from each code
        // line.
        let blanks = self.line.len() - self.line.trim_start_matches(' ').len();
        let from = self.passed.max(fence.indent.min(blanks));
        // Unstyled and without wrapping: the terminal wraps it, so that a copied line stays whole.
        if let Some(text) = self.line.get(from..).filter(|text| !text.is_empty()) {
            let text = text.to_owned();
            self.send_feeds();
            self.out.push_str(&text);
        }
        self.passed = self.line.len();
    }

    fn put_plain(&mut self, c: char) {
        self.send_feeds();
        self.out.push(c);
    }

    fn send_feeds(&mut self) {
        for _ in 0..std::mem::take(&mut self.feeds) {
            // CR LF, not LF: with output processing off (raw mode) LF alone does not return to the
            // first column.
            self.out.push_str("\r\n");
        }
    }

    /// Sends a row that is not rewritten later.
    fn put_row(&mut self, row: &GlyphRow) {
        self.show(vec![row.clone()]);
        self.commit();
    }

    /// Stops rewriting the shown rows.
    fn commit(&mut self) {
        self.shown.clear();
        self.feeds += 1;
    }

    /// Stops rewriting the shown rows and sends the rest of the line as plain text.
    fn freeze(&mut self) {
        self.frozen = true;
        if let MarkdownBlock::Heading(_) | MarkdownBlock::Table { .. } = self.block {
            // The shown rows belong to earlier lines. If nothing of the current line is among them,
            // it begins on a new row.
            self.feeds += usize::from(self.passed == 0);
            self.block = MarkdownBlock::Text;
        }
        // Wrapping drops a space at the end of a row. Without this one, the next word would join
        // the last.
        let blank = self.line.get(..self.passed).is_some_and(|line| line.ends_with(' '));
        if blank && self.shown.last().and_then(|row| row.last()).is_some_and(|last| last.c != ' ') {
            self.put_plain(' ');
        }
        let rest = self.line.get(self.passed..).unwrap_or_default().to_owned();
        rest.chars().for_each(|c| self.put_plain(c));
        self.passed = self.line.len();
    }

    /// Shows the received part of the current line.
    fn preview(&mut self) {
        if self.line.is_empty() || self.frozen || matches!(self.block, MarkdownBlock::Code(_)) {
            return;
        }
        if !table::may_rule(&self.line) {
            self.no_table();
        }
        if self.frozen {
            return;
        }
        let rows = match &self.block {
            // It may open a fence, which is shown as a border. 100 bytes end the wait for a line
            // that only begins like one.
            MarkdownBlock::Text if self.line.trim_start().starts_with("```") && self.line.len() < 100 => {
                return;
            }
            MarkdownBlock::Text | MarkdownBlock::Code(_) => {
                block::layout(&self.line, self.columns(), self.colours)
            }
            // The line is shown below the heading until it turns out to be the rule of a table or
            // not.
            MarkdownBlock::Heading(heading) => {
                let mut rows = block::layout(heading, self.columns(), self.colours);
                rows.extend(self.plain());
                rows
            }
            MarkdownBlock::Table { lines, align } => {
                let table = table::layout(lines, align, self.columns(), self.colours);
                let mut rows = table.map_or_else(|| self.untabled(lines), |(rows, _)| rows);
                rows.extend(self.plain());
                rows
            }
            MarkdownBlock::LongTable { .. } => self.plain(),
        };
        self.show(rows);
        if !self.frozen {
            self.passed = self.line.len();
        }
    }

    /// The previous line is not the heading of a table after all.
    fn no_table(&mut self) {
        if let MarkdownBlock::Heading(heading) = &self.block {
            // Removes the preview of the line below the heading.
            let rows = block::layout(heading, self.columns(), self.colours);
            self.show(rows);
            if !self.frozen {
                self.commit();
                self.passed = 0;
            }
            self.block = MarkdownBlock::Text;
        }
    }

    /// The current line without styles.
    fn plain(&self) -> Vec<GlyphRow> {
        wrap::wrap(&glyphs(&self.line, Style::PLAIN), &[], &[], self.columns())
    }

    /// A table that does not fit: its lines as in the source.
    fn untabled(&self, lines: &[String]) -> Vec<GlyphRow> {
        lines.iter().flat_map(|line| block::layout(line, self.columns(), self.colours)).collect()
    }

    fn end_line(&mut self) {
        if self.frozen {
            self.commit();
        } else {
            self.complete();
        }
        self.line.clear();
        (self.passed, self.frozen) = (0, false);
    }

    /// Shows a line whose end is known.
    fn complete(&mut self) {
        let line = self.line.clone();
        if let MarkdownBlock::Heading(heading) = &self.block
            && table::rule(&line, heading).is_none()
        {
            self.no_table();
        }
        if self.frozen {
            self.commit();
            return;
        }
        match std::mem::replace(&mut self.block, MarkdownBlock::Text) {
            MarkdownBlock::Code(fence) => {
                if fence.closes(&line) {
                    self.put_row(&block::border("", self.columns()));
                } else {
                    self.block = MarkdownBlock::Code(fence);
                    self.code();
                    self.feeds += 1;
                }
            }
            MarkdownBlock::Heading(heading) => match table::rule(&line, &heading) {
                Some(align) => self.table(vec![heading], align),
                None => self.text(line),
            },
            MarkdownBlock::Table { mut lines, align } if line.contains('|') => {
                lines.push(line);
                self.table(lines, align);
            }
            MarkdownBlock::Table { lines, align } => {
                let table = table::layout(&lines, &align, self.columns(), self.colours);
                let rows = table.map_or_else(|| self.untabled(&lines), |(rows, _)| rows);
                self.show(rows);
                self.commit();
                self.text(line);
            }
            MarkdownBlock::LongTable { widths, align } if line.contains('|') => {
                self.show(table::layout_row(&line, &widths, &align, self.colours));
                self.commit();
                self.block = MarkdownBlock::LongTable { widths, align };
            }
            MarkdownBlock::LongTable { .. } | MarkdownBlock::Text => self.text(line),
        }
    }

    /// Shows a line outside of tables and code. It may begin one.
    fn text(&mut self, line: String) {
        if line.trim().is_empty() {
            if !self.shown.is_empty() {
                // `preview` has shown a line of spaces, which now becomes an empty row.
                self.show(vec![GlyphRow::new()]);
            }
            self.commit();
        } else if let Some((fence, language)) = Fence::open(&line) {
            self.put_row(&block::border(language, self.columns()));
            self.block = MarkdownBlock::Code(fence);
        } else {
            self.show(block::layout(&line, self.columns(), self.colours));
            if line.contains('|') && table::cells(&line).len() > 1 && !self.frozen {
                // Shown as text until the next line tells whether a table begins here.
                self.block = MarkdownBlock::Heading(line);
            } else {
                self.commit();
            }
        }
    }

    /// Shows a table again after each of its lines.
    fn table(&mut self, lines: Vec<String>, align: Vec<Align>) {
        let (rows, widths) = match table::layout(&lines, &align, self.columns(), self.colours) {
            Some((rows, widths)) => (rows, Some(widths)),
            None => (self.untabled(&lines), None),
        };
        // Rows that scroll off the screen cannot be rewritten, so the widths are fixed before that:
        // the table, the next row and the prompt must fit.
        let long = rows.len() + 4 > self.size.1 || lines.len() > TABLE_LINES;
        self.show(rows);
        match widths {
            _ if self.frozen => self.commit(),
            Some(widths) if long => {
                self.commit();
                self.block = MarkdownBlock::LongTable { widths, align };
            }
            None if long => self.commit(),
            _ => self.block = MarkdownBlock::Table { lines, align },
        }
    }

    /// Replaces the shown rows by these, with as little output as possible.
    fn show(&mut self, rows: Vec<GlyphRow>) {
        if self.frozen {
            return;
        }
        if self.shown.is_empty() {
            self.send_feeds();
            self.write_rows(&rows, 0);
            self.shown = rows;
            return;
        }
        // Rewriting all rows per token flickers and floods a slow ssh connection. Only the part
        // behind the first difference is sent.
        let differs = self.shown.iter().zip(&rows).position(|(old, new)| old != new);
        let last = self.shown.len() - 1;
        let first = match differs {
            Some(first) => first,
            None if rows.len() == self.shown.len() => return,
            None => last.min(rows.len() - 1),
        };
        let up = last - first;
        // CUU (ESC [ n A) stops at the top of the screen. A row that has scrolled off is out of
        // reach, and the text would overwrite another row.
        if up + 1 >= self.size.1 {
            self.freeze();
            return;
        }
        if up > 0 {
            self.out.push_str(&format!("\u{1b}[{up}A"));
        }
        let keep = common_prefix(&self.shown[first], &rows[first], up == 0);
        let appends = up == 0 && keep == self.shown[first].len();
        if !appends {
            self.out.push('\r');
            let column = glyph::width(&rows[first][..keep]);
            if column > 0 {
                // `column` is above 0 here: a terminal treats a count of 0 as 1.
                self.out.push_str(&format!("\u{1b}[{column}C"));
            }
        }
        glyph::write(&rows[first][keep..], self.colours, &mut self.out);
        if !appends {
            // The rest of the old row is erased after the new text: erasing first would flicker.
            self.out.push_str("\u{1b}[K");
        }
        if first + 1 < rows.len() {
            self.out.push_str("\r\n");
            let old = last.saturating_sub(first);
            self.write_rows(&rows[first + 1..], old);
        }
        if rows.len() < self.shown.len() {
            // ED removes the old rows below.
            self.out.push_str("\u{1b}[J");
        }
        self.shown = rows;
    }

    /// Writes rows below each other. The first `old` of them replace rows on the screen, whose ends
    /// are erased.
    fn write_rows(&mut self, rows: &[GlyphRow], old: usize) {
        for (i, row) in rows.iter().enumerate() {
            if i > 0 {
                self.out.push_str("\r\n");
            }
            glyph::write(row, self.colours, &mut self.out);
            if i < old {
                self.out.push_str("\u{1b}[K");
            }
        }
    }
}
