//! Splitting, stripping and replacing. The parts share the buffer of the whole.

use crate::chars::is_space;
use crate::error::{Error, Result};
use crate::meter::Meter;
use crate::text::{Builder, TemplateString};
use crate::value::{SeqBuilder, SeqKind, Value};
use std::rc::Rc;

/// `strip`, `lstrip`, `rstrip`: strips whitespace, or any of `chars`.
pub(crate) fn stripped(
    meter: &Rc<Meter>,
    text: &TemplateString,
    chars: Option<&Value>,
    left: bool,
    right: bool,
) -> Result<TemplateString> {
    meter.touch(text.len())?;
    let set: Option<Vec<char>> = match chars {
        None | Some(Value::None) => None,
        Some(Value::Str(chars)) => {
            if chars.len() > 1024 {
                return Err(Error::limit("more than 1024 bytes of characters to strip"));
            }
            Some(chars.as_str().chars().collect())
        }
        Some(other) => {
            return Err(Error::value(format!(
                "strip needs a string, not a value of type {}",
                other.type_name()
            )));
        }
    };
    let is_stripped = |c: char| match &set {
        None => is_space(c),
        // Every stripped character is searched in the set. Without fuel nothing is stripped, and
        // the last charge fails.
        Some(set) => meter.spend(set.len() / 16 + 1).is_ok() && set.contains(&c),
    };
    let mut part = text.as_str();
    if left {
        part = part.trim_start_matches(is_stripped);
    }
    if right {
        part = part.trim_end_matches(is_stripped);
    }
    meter.spend(1)?;
    Ok(text.part(part))
}

/// `replace`: at most `count` occurrences, or all if it is negative.
pub(crate) fn replaced(
    meter: &Rc<Meter>,
    text: &TemplateString,
    old: &TemplateString,
    new: &TemplateString,
    count: i128,
) -> Result<TemplateString> {
    meter.touch(text.len())?;
    let most = if count < 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
    let mut out = Builder::new(meter)?;
    let mut at = 0;
    // An empty `old` matches before each character and at the end, as in Python.
    for (start, found) in text.as_str().match_indices(old.as_str()).take(most) {
        out.text(&text.slice(at..start))?;
        out.text(new)?;
        at = start + found.len();
    }
    out.text(&text.slice(at..text.len()))?;
    Ok(out.finish())
}

/// `split` and `rsplit`.
pub(super) fn split(
    meter: &Rc<Meter>,
    text: &TemplateString,
    separator: Option<&TemplateString>,
    most: i128,
    from_right: bool,
) -> Result<Value> {
    meter.touch(text.len())?;
    let most = if most < 0 { usize::MAX } else { usize::try_from(most).unwrap_or(usize::MAX) };
    let mut parts = SeqBuilder::new(meter)?;
    match separator {
        Some(separator) if separator.is_empty() => {
            return Err(Error::value("split needs a separator that is not empty"));
        }
        Some(separator) if from_right => {
            let mut end = text.len();
            for (start, found) in text.as_str().rmatch_indices(separator.as_str()).take(most) {
                parts.push(Value::Str(text.slice(start + found.len()..end)))?;
                end = start;
            }
            parts.push(Value::Str(text.slice(0..end)))?;
        }
        // GLM-4.6 and DeepSeek-R1 remove the reasoning this way: `split('</think>')[-1]`. Without a
        // match the whole text is the only part.
        Some(separator) => {
            let mut at = 0;
            for (start, found) in text.as_str().match_indices(separator.as_str()).take(most) {
                parts.push(Value::Str(text.slice(at..start)))?;
                at = start + found.len();
            }
            parts.push(Value::Str(text.slice(at..text.len())))?;
        }
        // Without a separator, runs of whitespace separate and both ends are trimmed.
        None if from_right => {
            let mut rest = text.as_str().trim_end_matches(is_space);
            while !rest.is_empty() {
                let start = rest.rfind(is_space).filter(|_| parts.values().len() < most);
                let start = start.map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
                parts.push(Value::Str(text.part(&rest[start..])))?;
                rest = rest[..start].trim_end_matches(is_space);
            }
        }
        None => {
            let mut rest = text.as_str().trim_start_matches(is_space);
            while !rest.is_empty() {
                // As in Python, the last part keeps its whitespace if the limit is reached: `'a b
                // '.split(none, 1)` ends with "b ".
                let end = rest.find(is_space).filter(|_| parts.values().len() < most).unwrap_or(rest.len());
                parts.push(Value::Str(text.part(&rest[..end])))?;
                rest = rest[end..].trim_start_matches(is_space);
            }
        }
    }
    if from_right {
        // rsplit found its parts from the right.
        parts.reorder(<[Value]>::reverse);
    }
    parts.list()
}

/// Line ends of Python's `splitlines`.
fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

pub(crate) fn ends_with_line_end(text: &str) -> bool {
    text.ends_with(ends_line)
}

/// `splitlines(keepends)`.
pub(crate) fn lines(meter: &Rc<Meter>, text: &TemplateString, keep_ends: bool) -> Result<SeqBuilder> {
    meter.touch(text.len())?;
    let mut lines = SeqBuilder::new(meter)?;
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = rest.find(ends_line).unwrap_or(rest.len());
        let tail = &rest[end..];
        // CR LF is one line end.
        let width = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(0, char::len_utf8) };
        let length = if keep_ends { end + width } else { end };
        lines.push(Value::Str(text.part(&rest[..length])))?;
        rest = &rest[end + width..];
    }
    Ok(lines)
}

/// `partition` and `rpartition`.
pub(super) fn partition(
    meter: &Rc<Meter>,
    text: &TemplateString,
    separator: &TemplateString,
    from_right: bool,
) -> Result<Value> {
    meter.touch(text.len())?;
    if separator.is_empty() {
        return Err(Error::value("partition needs a separator that is not empty"));
    }
    let (s, length) = (text.as_str(), text.len());
    let found = if from_right { s.rfind(separator.as_str()) } else { s.find(separator.as_str()) };
    let cuts = match found {
        Some(at) => (at, at + separator.len()),
        // A missing separator leaves the whole text last for rpartition, first for partition.
        None if from_right => (0, 0),
        None => (length, length),
    };
    let mut parts = SeqBuilder::with_capacity(meter, 3)?;
    for range in [0..cuts.0, cuts.0..cuts.1, cuts.1..length] {
        parts.push(Value::Str(text.slice(range)))?;
    }
    parts.of_kind(SeqKind::Tuple)
}

/// `expandtabs(size)`.
pub(super) fn expanded_tabs(meter: &Rc<Meter>, text: &TemplateString, size: usize) -> Result<TemplateString> {
    let mut out = Builder::with_capacity(meter, text.len())?;
    let mut column = 0_usize;
    for (run, content) in text.runs() {
        for c in run.chars() {
            match c {
                '\t' => {
                    // A tab size of 0 removes tabs.
                    let width = column.checked_rem(size).map_or(0, |over: usize| size - over);
                    out.pad(' ', width)?;
                    column += width;
                }
                '\n' | '\r' => {
                    out.char(c, content)?;
                    column = 0;
                }
                c => {
                    out.char(c, content)?;
                    column += 1;
                }
            }
        }
    }
    Ok(out.finish())
}
