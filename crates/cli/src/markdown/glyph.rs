//! Styled characters and rows of them.

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

    /// Writes the SGR sequence that sets exactly these attributes.
    fn write(self, colours: bool, out: &mut String) {
        // A reset first: SGR 22 ends bold and dim together, so a single attribute cannot be
        // removed.
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
    /// Columns that it occupies.
    pub(super) fn width(self) -> usize {
        match self.c {
            // The variation selector turns the character before it, of one column, into an emoji of
            // two.
            '\u{fe0f}' => 1,
            c => c.width().unwrap_or(0),
        }
    }

    /// Whether terminals disagree about the width of the characters around it.
    fn is_odd(self) -> bool {
        // Zero-width joiner, variation selectors, skin tones, regional indicators (flags). kitty
        // and WezTerm draw a joined sequence as one emoji, xterm draws its parts.
        matches!(self.c, '\u{200d}' | '\u{fe0e}'..='\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}' | '\u{1f1e6}'..='\u{1f1ff}')
    }
}

/// A row of the screen.
pub(super) type GlyphRow = Vec<Glyph>;

pub(super) fn glyphs(text: &str, style: Style) -> GlyphRow {
    text.chars().map(|c| Glyph { c, style }).collect()
}

/// Columns of a row.
pub(super) fn width(row: &[Glyph]) -> usize {
    row.iter().map(|glyph| glyph.width()).sum()
}

/// Writes glyphs and resets the attributes behind them.
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

/// How many glyphs of `old` can stay when it becomes `new`: writing begins behind them. `behind`:
/// the cursor is behind `old`.
pub(super) fn common_prefix(old: &[Glyph], new: &[Glyph], behind: bool) -> usize {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    // The row only grows and the cursor is at its end: no column needs to be computed.
    if behind && same == old.len() && new.get(same).is_none_or(|next| next.width() > 0 && !next.is_odd()) {
        return same;
    }
    // The column behind such a glyph is uncertain, so the whole row is written again.
    if new[..same].iter().any(|glyph| glyph.is_odd()) {
        return 0;
    }
    let joined = |row: &[Glyph], at: usize| row.get(at).is_some_and(|g| g.width() == 0 || g.is_odd());
    let mut prefix = same;
    // A combining mark changes the glyph before it, so both are written again.
    while prefix > 0 && (joined(old, prefix) || joined(new, prefix)) {
        prefix -= 1;
    }
    prefix
}
