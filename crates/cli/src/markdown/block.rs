//! Layout of one line: quotes, headings, rules, list items, fences.

use super::glyph::{GlyphRow, Style, glyphs};
use super::inline::inline;
use super::wrap::wrap;

/// Maximum depth of nested quotes.
const MAX_QUOTE_DEPTH: usize = 8;

/// Maximum columns of a horizontal rule.
const MAX_RULE_COLUMNS: usize = 60;

/// The rows of one line of Markdown.
pub(super) fn layout(line: &str, columns: usize, colours: bool) -> Vec<GlyphRow> {
    let (mut first, mut rest, mut text) = (GlyphRow::new(), GlyphRow::new(), line);
    for _ in 0..MAX_QUOTE_DEPTH {
        let Some(inner) = text.trim_start().strip_prefix('>') else { break };
        first.extend(glyphs("│ ", Style::DIM));
        text = inner.strip_prefix(' ').unwrap_or(inner);
    }
    rest.extend(&first);
    let inner = text.trim_start();
    // Nested lists keep their indentation. At most half of the width: deeper ones would leave no
    // room for text.
    let indent = glyphs(&" ".repeat((text.len() - inner.len()).min(columns / 2)), Style::PLAIN);
    first.extend(&indent);
    rest.extend(&indent);
    if is_rule(inner) {
        let room = columns.saturating_sub(first.len()).min(MAX_RULE_COLUMNS);
        first.extend(glyphs(&"─".repeat(room), Style::DIM));
        return vec![first];
    }
    if let Some((style, title)) = heading(inner) {
        return wrap(&inline(title, style, colours), &first, &rest, columns);
    }
    let (mark, text) = item(inner);
    rest.extend(glyphs(&" ".repeat(mark.chars().count()), Style::PLAIN));
    first.extend(glyphs(&mark, Style::PLAIN));
    wrap(&inline(text, Style::PLAIN, colours), &first, &rest, columns)
}

/// The border of a code block, with the language in it.
pub(super) fn border(language: &str, columns: usize) -> GlyphRow {
    let room = columns.min(MAX_RULE_COLUMNS);
    let language: String = language.chars().take(room.saturating_sub(6)).collect();
    let mut text = if language.is_empty() { String::new() } else { format!("── {language} ") };
    let used = super::glyph::width(&glyphs(&text, Style::DIM));
    text.push_str(&"─".repeat(room.saturating_sub(used)));
    glyphs(&text, Style::DIM)
}

/// The style of a heading's level, and its text.
fn heading(line: &str) -> Option<(Style, &str)> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    // CommonMark requires a space after the marks: `#include` and `#1234` are text.
    let title = title.strip_prefix(' ')?.trim_start();
    let style = match level {
        1 => Style::BOLD.with(Style::UNDERLINED),
        2 => Style::BOLD,
        3..=6 => Style::BOLD.with(Style::ITALIC),
        _ => return None,
    };
    // `## Title ##` has closing marks; those of `C#` have no space before them and belong to the
    // title.
    let bare = title.trim_end().trim_end_matches('#');
    Some((style, if bare.is_empty() || bare.ends_with(' ') { bare.trim_end() } else { title }))
}

fn is_rule(line: &str) -> bool {
    let mark = line.chars().next().filter(|c| matches!(c, '-' | '*' | '_'));
    let marks = line.chars().filter(|c| Some(*c) == mark).count();
    marks >= 3 && line.chars().all(|c| Some(c) == mark || c == ' ')
}

/// The displayed mark of a list item, and the item's text.
fn item(line: &str) -> (String, &str) {
    if let Some(text) = ["- ", "* ", "+ "].iter().find_map(|mark| line.strip_prefix(mark)) {
        let text = text.trim_start();
        for (written, shown) in [("[ ] ", "☐ "), ("[x] ", "☑ "), ("[X] ", "☑ ")] {
            if let Some(task) = text.strip_prefix(written) {
                return (shown.into(), task);
            }
        }
        return ("• ".into(), text);
    }
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    // CommonMark limits list numbers to nine digits. Longer ones are phone numbers or IDs.
    if (1..=9).contains(&digits)
        && let Some(text) = line[digits..].strip_prefix(['.', ')']).and_then(|rest| rest.strip_prefix(' '))
    {
        return (line[..digits + 2].to_owned(), text.trim_start());
    }
    (String::new(), line)
}

/// The opening fence of a code block.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fence {
    mark: char,
    length: usize,
    /// Spaces before it. They are removed from the code lines, too.
    pub(super) indent: usize,
}

impl Fence {
    /// The fence that a line opens, and its language.
    pub(super) fn open(line: &str) -> Option<(Fence, &str)> {
        let inner = line.trim_start_matches(' ');
        let mark = inner.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let info = inner.trim_start_matches(mark);
        let length = inner.len() - info.len();
        let fence = Fence { mark, length, indent: line.len() - inner.len() };
        // Backticks behind the opening ones make it inline code: ```` ```x``` ````. Tildes have no
        // such meaning.
        (length >= 3 && !(mark == '`' && info.contains('`')))
            .then(|| (fence, info.split_whitespace().next().unwrap_or_default()))
    }

    /// Whether a line, complete or partial, may close the fence.
    pub(super) fn may_close(&self, line: &str) -> bool {
        let inner = line.trim_start_matches(' ');
        inner.trim_start_matches(self.mark).chars().all(|c| c == ' ')
    }

    /// Whether a line closes the fence.
    pub(super) fn closes(&self, line: &str) -> bool {
        let marks = line.chars().filter(|c| *c == self.mark).count();
        let lead = line.trim_start_matches(' ').trim_end().len();
        marks >= self.length && lead == marks && self.may_close(line)
    }
}
