//! Cases and padding of strings. Each character keeps its origin.

use crate::error::Result;
use crate::meter::Meter;
use crate::text::{Builder, TemplateString};
use std::rc::Rc;

/// Bytes that are converted at a time, so that what the standard library allocates stays small.
const PIECE: usize = 4096;

/// Parts of a string of at most [`PIECE`] bytes.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE));
        rest = after;
        Some(piece)
    })
}

/// All letters as capitals.
pub(crate) fn raised(meter: &Rc<Meter>, text: &TemplateString) -> Result<TemplateString> {
    let mut out = Builder::with_capacity(meter, text.len())?;
    meter.touch(text.len() * 2)?;
    for (run, content) in text.runs() {
        for piece in pieces(run) {
            out.push(&piece.to_uppercase(), content)?;
        }
    }
    Ok(out.finish())
}

/// All letters as small ones.
pub(crate) fn lowered(meter: &Rc<Meter>, text: &TemplateString) -> Result<TemplateString> {
    let mut out = Builder::with_capacity(meter, text.len())?;
    meter.touch(text.len() * 2)?;
    for (run, content) in text.runs() {
        for piece in pieces(run) {
            out.push(&piece.to_lowercase(), content)?;
        }
    }
    Ok(out.finish())
}

/// Characters as capitals where `begins` says so of their byte position and of the character before them, else as small
/// ones. Of a capital of several letters (ß: SS) only the first stays one if `single`.
pub(crate) fn recased(
    meter: &Rc<Meter>,
    text: &TemplateString,
    single: bool,
    mut begins: impl FnMut(usize, char) -> bool,
) -> Result<TemplateString> {
    let mut out = Builder::with_capacity(meter, text.len())?;
    let (mut at, mut before) = (0, '\0');
    for (run, content) in text.runs() {
        for c in run.chars() {
            if begins(at, before) {
                for (place, c) in c.to_uppercase().enumerate() {
                    let small = c.to_lowercase().next().filter(|_| single && place > 0);
                    out.char(small.unwrap_or(c), content)?;
                }
            } else {
                for c in c.to_lowercase() {
                    out.char(c, content)?;
                }
            }
            at += c.len_utf8();
            before = c;
        }
    }
    Ok(out.finish())
}

/// `swapcase`.
pub(super) fn swapped(meter: &Rc<Meter>, text: &TemplateString) -> Result<TemplateString> {
    let mut out = Builder::with_capacity(meter, text.len())?;
    for (run, content) in text.runs() {
        for c in run.chars() {
            if c.is_uppercase() {
                for c in c.to_lowercase() {
                    out.char(c, content)?;
                }
            } else {
                for c in c.to_uppercase() {
                    out.char(c, content)?;
                }
            }
        }
    }
    Ok(out.finish())
}

/// Whether there are letters with a case, and all have the same.
pub(crate) fn is_cased(meter: &Meter, text: &TemplateString, upper: bool) -> Result<bool> {
    meter.touch(text.len())?;
    let mut found = false;
    for c in text.as_str().chars() {
        let (right, wrong) =
            if upper { (c.is_uppercase(), c.is_lowercase()) } else { (c.is_lowercase(), c.is_uppercase()) };
        if wrong {
            return Ok(false);
        }
        found |= right;
    }
    Ok(found)
}

/// Where a string stands in its padding.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PaddingSide {
    Left,
    Right,
    Center,
}

/// A string padded to a width in characters.
pub(crate) fn padded(
    meter: &Rc<Meter>,
    text: &TemplateString,
    width: usize,
    fill: char,
    side: PaddingSide,
) -> Result<TemplateString> {
    let room = width.saturating_sub(text.char_count(meter)?);
    if room == 0 {
        return Ok(text.clone());
    }
    let before = match side {
        PaddingSide::Left => 0,
        PaddingSide::Right => room,
        // as Python rounds it
        PaddingSide::Center => room / 2 + (room & width & 1),
    };
    let mut out = Builder::new(meter)?;
    out.pad(fill, before)?;
    out.text(text)?;
    out.pad(fill, room - before)?;
    Ok(out.finish())
}
