//! Characters with their style, and rows of them.

use unicode_width::UnicodeWidthChar;

/// Attributes of a character, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Style(u8);

impl Style {
    pub(super) const PLAIN: Style = Style(0);
    pub(super) const BOLD: Style = Style(1);
    pub(super) const DIM: Style = Style(2);
    pub(super) const ITALIC: Style = Style(4);
    pub(super) const UNDERLINED: Style = Style(8);
    pub(super) const STRUCK: Style = Style(16);
    pub(super) const CODE: Style = Style(32);

    pub(super) fn with(self, other: Style) -> Style {
        Style(self.0 | other.0)
    }

    /// Writes the sequence that sets exactly these attributes.
    fn write(self, colours: bool, out: &mut String) {
        out.push_str("\u{1b}[0");
        let sgr = [
            (Style::BOLD, ";1"),
            (Style::DIM, ";2"),
            (Style::ITALIC, ";3"),
            (Style::UNDERLINED, ";4"),
            (Style::STRUCK, ";9"),
            (Style::CODE, if colours { ";36" } else { "" }),
        ];
        for (_, code) in sgr.iter().filter(|(style, _)| self.0 & style.0 != 0) {
            out.push_str(code);
        }
        out.push('m');
    }
}

/// A character with its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Glyph {
    pub(super) c: char,
    pub(super) style: Style,
}

impl Glyph {
    /// Columns that it takes.
    pub(super) fn width(self) -> usize {
        match self.c {
            // it makes an emoji, of two columns, of the character before it
            '\u{fe0f}' => 1,
            c => c.width().unwrap_or(0),
        }
    }

    /// Whether terminals disagree on how wide the characters around it are: joined emoji, their skin, flags.
    fn is_odd(self) -> bool {
        matches!(self.c, '\u{200d}' | '\u{fe0e}'..='\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}' | '\u{1f1e6}'..='\u{1f1ff}')
    }
}

/// What stands on a row of the screen.
pub(super) type GlyphRow = Vec<Glyph>;

pub(super) fn glyphs(text: &str, style: Style) -> GlyphRow {
    text.chars().map(|c| Glyph { c, style }).collect()
}

/// Columns of a row.
pub(super) fn width(row: &[Glyph]) -> usize {
    row.iter().map(|glyph| glyph.width()).sum()
}

/// Writes glyphs; the terminal is left with no attribute set.
pub(super) fn write(row: &[Glyph], colours: bool, out: &mut String) {
    let mut now = Style::PLAIN;
    for glyph in row {
        if glyph.style != now {
            glyph.style.write(colours, out);
            now = glyph.style;
        }
        out.push(glyph.c);
    }
    if now != Style::PLAIN {
        out.push_str("\u{1b}[0m");
    }
}

/// How many glyphs of `old` can stay when it becomes `new`, so that writing can begin behind them. `behind`: the cursor stands behind `old`.
pub(super) fn kept(old: &[Glyph], new: &[Glyph], behind: bool) -> usize {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    // what only goes on behind its end needs no column to be known
    if behind && same == old.len() && new.get(same).is_none_or(|next| next.width() > 0 && !next.is_odd()) {
        return same;
    }
    if new[..same].iter().any(|glyph| glyph.is_odd()) {
        return 0;
    }
    let joined = |row: &[Glyph], at: usize| row.get(at).is_some_and(|g| g.width() == 0 || g.is_odd());
    let mut kept = same;
    while kept > 0 && (joined(old, kept) || joined(new, kept)) {
        kept -= 1;
    }
    kept
}
