//! Inline Markdown: emphasis, code, links.

use super::glyph::{GlyphRow, Style, glyphs};

/// Maximum depth of nested emphasis and links.
// It bounds the recursion.
const MAX_DEPTH: usize = 8;

/// Characters that a backslash escapes.
// Brackets are not among them: `\(` and `\[` begin LaTeX formulas, which are shown unchanged.
const ESCAPED: &str = "*_`#~|>";

/// The styled text of a line without its marks. Marks that are not closed stay.
pub(super) fn inline(text: &str, style: Style, colours: bool) -> GlyphRow {
    let chars: Vec<char> = text.chars().collect();
    let mut row = GlyphRow::new();
    InlineMarkdown { colours, depth: 0, unclosed: Vec::new() }.parse(&chars, style, &mut row);
    row
}

struct InlineMarkdown {
    colours: bool,
    depth: usize,
    /// Marks with no closing mark from here to the end of the text.
    // Without this list, a line of `*a *a *a …` would be searched to its end for each mark, at
    // every piece.
    unclosed: Vec<(char, usize)>,
}

impl InlineMarkdown {
    fn parse(&mut self, text: &[char], style: Style, row: &mut GlyphRow) {
        let mut at = 0;
        while at < text.len() {
            at += match text[at] {
                '\\' => self.backslash(&text[at..], style, row),
                '`' => self.code(&text[at..], style, row),
                '*' | '_' | '~' => self.emphasis(text, at, style, row),
                '$' => formula(text, at, style, row),
                '[' => self.link(&text[at..], style, row),
                '!' if text.get(at + 1) == Some(&'[') => self.image(&text[at..], style, row),
                '<' => self.address(&text[at..], style, row),
                c => {
                    put(row, &[c], style);
                    1
                }
            };
        }
    }

    /// Parses a part of the text with more style.
    fn inner(&mut self, text: &[char], style: Style, row: &mut GlyphRow) {
        // The list is about one text: a part of it ends earlier, so a mark may be unclosed there
        // and closed outside.
        let unclosed = std::mem::take(&mut self.unclosed);
        self.depth += 1;
        self.parse(text, style, row);
        self.depth -= 1;
        self.unclosed = unclosed;
    }

    fn backslash(&mut self, text: &[char], style: Style, row: &mut GlyphRow) -> usize {
        match text.get(1) {
            Some(c) if ESCAPED.contains(*c) => {
                put(row, &[*c], style);
                2
            }
            Some(open @ ('(' | '[')) => {
                let close = ['\\', if *open == '(' { ')' } else { ']' }];
                let end = self.find(text, 2, &close).map_or(2, |end| end + 2);
                put(row, &text[..end], style);
                end
            }
            _ => {
                put(row, &text[..1], style);
                1
            }
        }
    }

    /// Position of `what` at or after `from`.
    fn find(&mut self, text: &[char], from: usize, what: &[char]) -> Option<usize> {
        // The entries share `unclosed` with runs of marks. A length above 100 keeps them apart.
        let key = (what[what.len() - 1], what.len() + 100);
        if self.unclosed.contains(&key) {
            return None;
        }
        let found = text.get(from..)?.windows(what.len()).position(|window| window == what);
        if found.is_none() {
            self.unclosed.push(key);
        }
        found.map(|at| from + at)
    }

    fn code(&mut self, text: &[char], style: Style, row: &mut GlyphRow) -> usize {
        let ticks = run(text, 0);
        let key = ('`', ticks);
        let mut end = ticks;
        let closed = loop {
            if self.unclosed.contains(&key) {
                break false;
            }
            while end < text.len() && text[end] != '`' {
                end += 1;
            }
            if end >= text.len() {
                self.unclosed.push(key);
                break false;
            }
            let found = run(text, end);
            if found == ticks {
                break true;
            }
            end += found;
        };
        if !closed {
            put(row, &text[..ticks], style);
            return ticks;
        }
        let mut body = &text[ticks..end];
        // CommonMark removes one space at each end: `` `` `a` `` `` shows a text with backticks.
        if let [' ', inner @ .., ' '] = body
            && inner.iter().any(|c| *c != ' ')
        {
            body = inner;
        }
        // Without colours only the marks distinguish code from text.
        let mark: &[char] = if self.colours { &[] } else { &['`'] };
        for part in [mark, body, mark] {
            put(row, part, style.with(Style::CODE));
        }
        end + ticks
    }

    fn emphasis(&mut self, text: &[char], at: usize, style: Style, row: &mut GlyphRow) -> usize {
        let (mark, length) = (text[at], run(text, at));
        let more = match (mark, length) {
            ('~', 2) => Style::STRUCK,
            ('*' | '_', 1) => Style::ITALIC,
            ('*' | '_', 2) => Style::BOLD,
            ('*' | '_', 3) => Style::BOLD.with(Style::ITALIC),
            _ => {
                put(row, &text[at..at + length], style);
                return length;
            }
        };
        let from = at + length;
        // An opening mark is not followed by a space (`2 * 3`). An underscore within a word is part
        // of a name (`snake_case`).
        let opens = text.get(from).is_some_and(|c| !c.is_whitespace())
            && (mark != '_' || at == 0 || !text[at - 1].is_alphanumeric());
        let end = if opens && self.depth < MAX_DEPTH { self.closing(text, from, mark, length) } else { None };
        let Some(end) = end else {
            put(row, &text[at..from], style);
            return length;
        };
        self.inner(&text[from..end], style.with(more), row);
        end + length - at
    }

    /// Position of the mark that closes the emphasis beginning at `from`.
    fn closing(&mut self, text: &[char], from: usize, mark: char, length: usize) -> Option<usize> {
        if self.unclosed.contains(&(mark, length)) {
            return None;
        }
        let mut at = from;
        while at < text.len() {
            match text[at] {
                '\\' => at += 2,
                '`' => {
                    // Marks within inline code do not close emphasis. The search for the code's end
                    // is limited, because this loop runs per mark.
                    let ticks = run(text, at);
                    at += ticks;
                    let mut look = at;
                    while look < text.len() && look - at < 200 {
                        let found = run_of(text, look, '`');
                        if found == ticks {
                            at = look + ticks;
                            break;
                        }
                        look += found.max(1);
                    }
                }
                c if c == mark => {
                    let found = run(text, at);
                    let free = mark != '_' || text.get(at + found).is_none_or(|c| !c.is_alphanumeric());
                    // `**bold *both***`: the three marks close the inner and the outer emphasis.
                    if found >= length && at > from && !text[at - 1].is_whitespace() && free {
                        let fits = found == length || (found == 3 && length < 3);
                        if fits {
                            return Some(if found == length { at } else { at + found - length });
                        }
                    }
                    at += found;
                }
                _ => at += 1,
            }
        }
        self.unclosed.push((mark, length));
        None
    }

    /// `[text](address)`.
    fn link(&mut self, text: &[char], style: Style, row: &mut GlyphRow) -> usize {
        let Some((label, address, length)) = self.parts(text) else {
            put(row, &text[..1], style);
            return 1;
        };
        // The address is shown once.
        if label == address || label.is_empty() {
            put(row, address, style.with(Style::UNDERLINED));
            return length;
        }
        self.inner(label, style.with(Style::UNDERLINED), row);
        if !address.is_empty() {
            put(row, &[' ', '('], style.with(Style::DIM));
            put(row, address, style.with(Style::DIM));
            put(row, &[')'], style.with(Style::DIM));
        }
        length
    }

    /// `![text](address)`.
    fn image(&mut self, text: &[char], style: Style, row: &mut GlyphRow) -> usize {
        let Some((label, address, length)) = self.parts(&text[1..]) else {
            put(row, &text[..1], style);
            return 1;
        };
        let (label, address): (String, String) = (label.iter().collect(), address.iter().collect());
        row.extend(glyphs(&format!("[image: {label}]"), style));
        row.extend(glyphs(&format!(" ({address})"), style.with(Style::DIM)));
        1 + length
    }

    /// Label, address and length of a link.
    fn parts<'t>(&mut self, text: &'t [char]) -> Option<(&'t [char], &'t [char], usize)> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        let close = self.find(text, 1, &[']', '('])?;
        let (mut depth, mut at) = (1, close + 2);
        while depth > 0 {
            match text.get(at)? {
                '(' => depth += 1,
                ')' => depth -= 1,
                // Parentheses within an address are balanced (Wikipedia). The limit bounds the
                // search.
                _ if at - close > 2000 => return None,
                _ => {}
            }
            at += 1;
        }
        Some((&text[1..close], &text[close + 2..at - 1], at))
    }

    /// `<https://…>`.
    fn address(&mut self, text: &[char], style: Style, row: &mut GlyphRow) -> usize {
        let end = text.iter().take(2000).position(|c| *c == '>');
        let web = |text: &[char]| {
            let head: String = text.iter().take(8).collect();
            ["http://", "https://", "mailto:"].iter().any(|scheme| head.starts_with(scheme))
        };
        match end {
            Some(end) if web(&text[1..end]) && !text[1..end].contains(&' ') => {
                put(row, &text[1..end], style.with(Style::UNDERLINED));
                end + 1
            }
            _ => {
                put(row, &text[..1], style);
                1
            }
        }
    }
}

/// `$x_1 * y_1$` is shown unchanged: its `_` and `*` are not emphasis. A price is not a formula.
fn formula(text: &[char], at: usize, style: Style, row: &mut GlyphRow) -> usize {
    let marks = run(text, at);
    let from = at + marks;
    let closing = |i: &usize| {
        // Pandoc's rule: the closing `$` has no space before it and no digit behind it (`$5 and
        // $10`).
        run_of(text, *i, '$') == marks
            && (marks > 1 || (text[i - 1] != ' ' && !text.get(i + 1).is_some_and(char::is_ascii_digit)))
    };
    let inside = text.get(from).is_some_and(|c| *c != ' ' || marks > 1) && marks <= 2;
    let limit = text.len().min(from + 400);
    let length = match (from + 1..limit).find(|i| inside && closing(i)) {
        Some(end) => end + marks - at,
        None => marks,
    };
    put(row, &text[at..at + length], style);
    length
}

/// Length of the run of the character at `at`.
fn run(text: &[char], at: usize) -> usize {
    run_of(text, at, text[at])
}

fn run_of(text: &[char], at: usize, mark: char) -> usize {
    text[at..].iter().take_while(|c| **c == mark).count()
}

fn put(row: &mut GlyphRow, text: &[char], style: Style) {
    row.extend(text.iter().map(|c| super::glyph::Glyph { c: *c, style }));
}
