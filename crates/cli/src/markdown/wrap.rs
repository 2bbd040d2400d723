//! Word wrapping.

use super::glyph::{Glyph, GlyphRow, width};

/// Wraps a text into rows of at most `columns`. `first` is put before the first row, `rest` before
/// the others. A word longer than a row is cut.
pub(super) fn wrap(text: &[Glyph], first: &[Glyph], rest: &[Glyph], columns: usize) -> Vec<GlyphRow> {
    let columns = columns.max(1);
    // A margin (quote bars, list indentation) that leaves fewer than four columns is omitted.
    let fits = |margin: &[Glyph]| if width(margin) + 4 <= columns { margin.to_vec() } else { Vec::new() };
    let (first, rest) = (fits(first), fits(rest));
    let mut rows = vec![first];
    let mut used = width(&rows[0]);
    let mut fresh = true;
    let mut at = 0;
    while at < text.len() {
        let end = at + word(&text[at..]);
        let (piece, long) = (&text[at..end], width(&text[at..end]));
        at = end;
        let blank = piece[0].c == ' ';
        if used + long > columns && blank {
            // Spaces at the end of a row are dropped, and the next word begins a new row.
            used = columns;
            continue;
        }
        if used + long > columns && !fresh {
            trim(rows.last_mut());
            rows.push(rest.clone());
            (used, fresh) = (width(&rest), true);
        }
        for glyph in piece {
            if used + glyph.width() > columns && !fresh {
                rows.push(rest.clone());
                used = width(&rest);
            }
            if let Some(row) = rows.last_mut() {
                row.push(*glyph);
            }
            used += glyph.width();
            fresh = false;
        }
    }
    rows
}

/// Length of the first unit that is not broken: spaces, a word, or one wide character.
fn word(text: &[Glyph]) -> usize {
    let joins = |glyph: &Glyph| glyph.width() == 0 || matches!(glyph.c, '\u{fe0f}');
    let Some(head) = text.first() else { return 0 };
    if head.c == ' ' {
        return text.iter().take_while(|glyph| glyph.c == ' ').count();
    }
    let ends = |glyph: &Glyph| glyph.c == ' ' || glyph.width() > 1;
    let more = text[1..].iter();
    // Chinese and Japanese have no spaces between words: a row may end behind any wide character,
    // but not before its combining marks.
    if head.width() > 1 {
        return 1 + more.take_while(|glyph| joins(glyph)).count();
    }
    1 + more.take_while(|glyph| !ends(glyph)).count()
}

fn trim(row: Option<&mut GlyphRow>) {
    if let Some(row) = row {
        while row.last().is_some_and(|glyph| glyph.c == ' ') {
            row.pop();
        }
    }
}
