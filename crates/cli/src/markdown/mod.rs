//! Markdown on a terminal, while it arrives.
//!
//! A line shows at once, styled as far as it is certain; what changes when its end is known (a mark that is closed, a word that moves to the next
//! row, a table's widths) is the only part that is written again. Rows never reach the terminal's last column, so that the cursor is where it is
//! thought to be. Whatever pieces the text comes in, the screen ends up the same.
//!
//! Where rows cannot be written again (the terminal's width has changed, or they have left the screen), they stay as they are, and the rest of the
//! line follows as plain text: nothing that stands above is ever overwritten.

mod block;
mod glyph;
mod inline;
mod table;
mod wrap;

#[cfg(test)]
mod tests;

use block::Fence;
use glyph::{GlyphRow, Style, glyphs, kept};
use latent_types::printable_stream;
use table::Align;

/// Longest line that is laid out again as it grows, in bytes.
const LONGEST: usize = 4096;

/// Most lines of a table whose widths follow its content.
const TABLE_LINES: usize = 200;

/// Blanks for a tab.
const TAB: &str = "    ";

/// What the next line belongs to.
#[derive(Clone, Debug, PartialEq)]
enum MarkdownBlock {
    Text,
    /// The line before may be a table's heading, and can still be written again.
    Heading(String),
    Table {
        lines: Vec<String>,
        align: Vec<Align>,
    },
    /// A table whose earlier rows stay as they are.
    LongTable {
        widths: Vec<usize>,
        align: Vec<Align>,
    },
    Code(Fence),
}

/// Turns Markdown into what a terminal is sent.
pub(crate) struct Markdown {
    colours: bool,
    block: MarkdownBlock,
    /// The received part of the current line.
    line: String,
    /// Rows that may change; the cursor stands behind the last.
    shown: Vec<GlyphRow>,
    /// Whether the rest of the line follows as plain text.
    frozen: bool,
    /// Bytes of the line that are shown, or are of code.
    passed: usize,
    /// Line feeds that are sent when something follows.
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

    /// What to send for more text, on a terminal of this size. Control characters are escaped.
    pub(crate) fn push(&mut self, text: &str, size: (usize, usize)) -> String {
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

    /// Rows that were laid out for another width stay.
    fn resized(&mut self) {
        if !self.line.is_empty() {
            self.freeze();
            return;
        }
        self.rest();
        if let MarkdownBlock::Table { lines, align } = std::mem::replace(&mut self.block, MarkdownBlock::Text)
            && let Some((_, widths)) = table::layout(&lines, &align, self.columns(), self.colours)
        {
            self.block = MarkdownBlock::LongTable { widths, align };
        }
    }

    /// What to send at the end of the text. The cursor is left behind the last row.
    pub(crate) fn finish(&mut self) -> String {
        if !self.line.is_empty() {
            self.end_line();
        }
        if let MarkdownBlock::Code(_) = self.block {
            self.put_row(&block::border("", self.columns()));
        }
        let out = std::mem::take(&mut self.out);
        *self = Markdown { size: self.size, ..Markdown::new(self.colours) };
        out
    }

    /// Columns that rows may fill.
    fn columns(&self) -> usize {
        self.size.0.saturating_sub(1).max(1)
    }

    fn feed(&mut self, c: char) {
        self.line.push(c);
        if let MarkdownBlock::Code(fence) = &self.block {
            if !fence.may_close(&self.line) {
                self.code();
            }
        } else if self.frozen {
            self.put_plain(c);
        } else if self.line.len() >= LONGEST {
            self.preview();
            self.freeze();
        }
    }

    /// Sends what is new of a line of code, as it is: the terminal breaks it, so that a copy of it is whole.
    fn code(&mut self) {
        let MarkdownBlock::Code(fence) = &self.block else { return };
        let blanks = self.line.len() - self.line.trim_start_matches(' ').len();
        let from = self.passed.max(fence.indent.min(blanks));
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
            self.out.push_str("\r\n");
        }
    }

    /// Sends a row that stays.
    fn put_row(&mut self, row: &GlyphRow) {
        self.show(vec![row.clone()]);
        self.rest();
    }

    /// The shown rows stay as they are from now on.
    fn rest(&mut self) {
        self.shown.clear();
        self.feeds += 1;
    }

    /// Lets the shown rows be, and the rest of the line follow them.
    fn freeze(&mut self) {
        self.frozen = true;
        if let MarkdownBlock::Heading(_) | MarkdownBlock::Table { .. } = self.block {
            // the rows that stand there are of lines before
            self.feeds += usize::from(self.passed == 0);
            self.block = MarkdownBlock::Text;
        }
        // a blank at the end of a row is not there
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
            // it may open a fence
            MarkdownBlock::Text if self.line.trim_start().starts_with("```") && self.line.len() < 100 => {
                return;
            }
            MarkdownBlock::Text | MarkdownBlock::Code(_) => {
                block::layout(&self.line, self.columns(), self.colours)
            }
            // below the rows that are there, until it is complete
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

    /// What could have been a table's heading is none.
    fn no_table(&mut self) {
        if let MarkdownBlock::Heading(heading) = &self.block {
            // without the rows of the line below
            let rows = block::layout(heading, self.columns(), self.colours);
            self.show(rows);
            if !self.frozen {
                self.rest();
                self.passed = 0;
            }
            self.block = MarkdownBlock::Text;
        }
    }

    /// The present line without any style.
    fn plain(&self) -> Vec<GlyphRow> {
        wrap::wrap(&glyphs(&self.line, Style::PLAIN), &[], &[], self.columns())
    }

    /// A table that does not fit: its lines as they are written.
    fn untabled(&self, lines: &[String]) -> Vec<GlyphRow> {
        lines.iter().flat_map(|line| block::layout(line, self.columns(), self.colours)).collect()
    }

    fn end_line(&mut self) {
        if self.frozen {
            self.rest();
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
            self.rest();
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
                self.rest();
                self.text(line);
            }
            MarkdownBlock::LongTable { widths, align } if line.contains('|') => {
                self.show(table::more(&line, &widths, &align, self.colours));
                self.rest();
                self.block = MarkdownBlock::LongTable { widths, align };
            }
            MarkdownBlock::LongTable { .. } | MarkdownBlock::Text => self.text(line),
        }
    }

    /// Shows a line that is of no table or code, but may begin one.
    fn text(&mut self, line: String) {
        if line.trim().is_empty() {
            if !self.shown.is_empty() {
                self.show(vec![GlyphRow::new()]);
            }
            self.rest();
        } else if let Some((fence, language)) = Fence::open(&line) {
            self.put_row(&block::border(language, self.columns()));
            self.block = MarkdownBlock::Code(fence);
        } else {
            self.show(block::layout(&line, self.columns(), self.colours));
            if line.contains('|') && table::cells(&line).len() > 1 && !self.frozen {
                self.block = MarkdownBlock::Heading(line);
            } else {
                self.rest();
            }
        }
    }

    /// Shows a table after each of its lines.
    fn table(&mut self, lines: Vec<String>, align: Vec<Align>) {
        let (rows, widths) = match table::layout(&lines, &align, self.columns(), self.colours) {
            Some((rows, widths)) => (rows, Some(widths)),
            None => (self.untabled(&lines), None),
        };
        // what leaves the screen cannot be written again
        let long = rows.len() + 4 > self.size.1 || lines.len() > TABLE_LINES;
        self.show(rows);
        match widths {
            _ if self.frozen => self.rest(),
            Some(widths) if long => {
                self.rest();
                self.block = MarkdownBlock::LongTable { widths, align };
            }
            None if long => self.rest(),
            _ => self.block = MarkdownBlock::Table { lines, align },
        }
    }

    /// Makes the terminal show these rows in place of those that it shows.
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
        let differs = self.shown.iter().zip(&rows).position(|(old, new)| old != new);
        let last = self.shown.len() - 1;
        let first = match differs {
            Some(first) => first,
            None if rows.len() == self.shown.len() => return,
            None => last.min(rows.len() - 1),
        };
        let up = last - first;
        if up + 1 >= self.size.1 {
            self.freeze();
            return;
        }
        if up > 0 {
            self.out.push_str(&format!("\u{1b}[{up}A"));
        }
        let keep = kept(&self.shown[first], &rows[first], up == 0);
        let appends = up == 0 && keep == self.shown[first].len();
        if !appends {
            self.out.push('\r');
            let column = glyph::width(&rows[first][..keep]);
            if column > 0 {
                self.out.push_str(&format!("\u{1b}[{column}C"));
            }
        }
        glyph::write(&rows[first][keep..], self.colours, &mut self.out);
        if !appends {
            self.out.push_str("\u{1b}[K");
        }
        if first + 1 < rows.len() {
            self.out.push_str("\r\n");
            let old = last.saturating_sub(first);
            self.write_rows(&rows[first + 1..], old);
        }
        if rows.len() < self.shown.len() {
            self.out.push_str("\u{1b}[J");
        }
        self.shown = rows;
    }

    /// Writes rows below each other; the first `old` of them over others.
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
