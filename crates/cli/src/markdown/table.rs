//! Layout of tables (GitHub-flavored Markdown).

use super::glyph::{Glyph, GlyphRow, Style, glyphs, width};
use super::inline::inline;
use super::wrap::wrap;

/// Maximum columns of a table.
const MAX_COLUMNS: usize = 32;

/// Minimum width to which columns are narrowed if not all fit.
const MIN_WIDTH: usize = 3;

/// The text between two columns.
const GAP: &str = " │ ";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Align {
    Left,
    Centre,
    Right,
}

pub(super) fn cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let line = line.strip_prefix('|').unwrap_or(line);
    let (mut cells, mut from, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in line.char_indices() {
        // In a table, GitHub splits at a `|` even within backticks. Only `\|` is part of a cell.
        if c == '|' && !escaped {
            cells.push(line[from..at].trim());
            from = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    // The last `|` of a row is optional.
    if !line[from..].trim().is_empty() {
        cells.push(line[from..].trim());
    }
    cells
}

/// Whether this line, complete or partial, may be the rule below a table's heading.
pub(super) fn may_rule(line: &str) -> bool {
    line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '))
}

/// The alignment of the columns, if this line is the rule below a heading with as many columns.
pub(super) fn rule(line: &str, heading: &str) -> Option<Vec<Align>> {
    let cells_below = cells(line);
    // GitHub's Markdown requires as many cells as the heading has. Otherwise the lines are text.
    if !may_rule(line) || cells_below.len() != cells(heading).len() || cells_below.len() > MAX_COLUMNS {
        return None;
    }
    let align = |cell: &&str| {
        let dashes = cell.trim_matches(':');
        let plain = !dashes.is_empty() && dashes.chars().all(|c| c == '-');
        plain.then(|| match (cell.starts_with(':'), cell.ends_with(':')) {
            (true, true) => Align::Centre,
            (false, true) => Align::Right,
            _ => Align::Left,
        })
    };
    cells_below.iter().map(align).collect()
}

/// The rows of a table's lines (the first is the heading) and the widths of its columns; `None` if
/// they do not fit.
pub(super) fn layout(
    lines: &[String],
    align: &[Align],
    columns: usize,
    colours: bool,
) -> Option<(Vec<GlyphRow>, Vec<usize>)> {
    let styled = |(i, line): (usize, &String)| -> Vec<GlyphRow> {
        let style = if i == 0 { Style::BOLD } else { Style::PLAIN };
        row_cells(line, align.len(), style, colours)
    };
    let table: Vec<Vec<GlyphRow>> = lines.iter().enumerate().map(styled).collect();
    // 3 is the width of `GAP`. The result is `None` if the gaps alone do not fit.
    let room = columns.checked_sub(3 * (align.len() - 1))?;
    let mut widths: Vec<usize> = (0..align.len())
        .map(|i| table.iter().map(|cells| width(&cells[i])).max().unwrap_or(0).clamp(1, room.max(1)))
        .collect();
    // Narrowing the widest column first keeps short columns (numbers, names) unbroken.
    while widths.iter().sum::<usize>() > room {
        let widest = widths.iter_mut().max()?;
        if *widest <= MIN_WIDTH {
            return None;
        }
        *widest -= 1;
    }
    let mut rows = Vec::new();
    for (i, cells) in table.iter().enumerate() {
        rows.extend(line_rows(cells, &widths, align));
        if i == 0 {
            let dashes: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            rows.push(glyphs(&dashes.join("─┼─"), Style::DIM));
        }
    }
    Some((rows, widths))
}

/// The rows of another line of a table whose widths are fixed.
pub(super) fn layout_row(line: &str, widths: &[usize], align: &[Align], colours: bool) -> Vec<GlyphRow> {
    line_rows(&row_cells(line, align.len(), Style::PLAIN, colours), widths, align)
}

/// The cells of a line.
fn row_cells(line: &str, columns: usize, style: Style, colours: bool) -> Vec<GlyphRow> {
    let found = cells(line);
    let cell = |i: usize| {
        // A cell cannot contain a line break; models write `<br>` instead.
        let text = found.get(i).copied().unwrap_or_default().replace("<br>", " ").replace("\\|", "|");
        inline(&text, style, colours)
    };
    let mut row: Vec<GlyphRow> = (0..columns).map(cell).collect();
    // Cells beyond the last column are appended to it, so that no text is lost.
    if let (Some(last), Some(beyond)) = (row.last_mut(), found.get(columns..)) {
        for text in beyond {
            last.extend(glyphs(" | ", style));
            last.extend(inline(text, style, colours));
        }
    }
    row
}

fn line_rows(cells: &[GlyphRow], widths: &[usize], align: &[Align]) -> Vec<GlyphRow> {
    let wrapped: Vec<Vec<GlyphRow>> =
        cells.iter().zip(widths).map(|(cell, width)| wrap(cell, &[], &[], *width)).collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(1);
    let mut rows = Vec::new();
    for i in 0..height {
        let mut row = GlyphRow::new();
        for (column, part) in wrapped.iter().enumerate() {
            if column > 0 {
                row.extend(glyphs(GAP, Style::DIM));
            }
            let text: &[Glyph] = part.get(i).map_or(&[], |row| row.as_slice());
            let blank = widths[column].saturating_sub(width(text));
            let before = match align[column] {
                Align::Left => 0,
                Align::Centre => blank / 2,
                Align::Right => blank,
            };
            row.extend(glyphs(&" ".repeat(before), Style::PLAIN));
            row.extend(text);
            // No padding behind the last column: it would be copied along with the text.
            if column + 1 < cells.len() {
                row.extend(glyphs(&" ".repeat(blank - before), Style::PLAIN));
            }
        }
        rows.push(row);
    }
    rows
}
