//! Case conversion and padding. Each character keeps its origin.

use crate::error::Result;
use crate::meter::Meter;
use crate::text::{Builder, TemplateString};
use std::rc::Rc;

/// Bytes converted per call.
// `str::to_uppercase` allocates its result without the meter, so the pieces are small.
const PIECE: usize = 4096;

/// Splits a string into pieces of at most [`PIECE`] bytes.
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

/// Upper case.
pub(crate) fn raised(meter: &Rc<Meter>, text: &TemplateString) -> Result<TemplateString> {
    let mut out = Builder::with_capacity(meter, text.len())?;
    // Twice: the standard library writes each piece, and the builder copies it.
    meter.touch(text.len() * 2)?;
    for (run, content) in text.runs() {
        for piece in pieces(run) {
            out.push(&piece.to_uppercase(), content)?;
        }
    }
    Ok(out.finish())
}

/// Lower case.
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

/// Upper-cases the characters for which `begins` returns true, given the byte position and the
/// previous character, and lower-cases all others. If an upper case has several letters (ß: SS),
/// `single` lower-cases all but the first: `'ß'.title()` is "Ss" and the filter `title` gives "SS".
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

/// Whether at least one letter has a case, and all cased letters have the same.
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

/// Position of a string in its padding.
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
        // CPython's str.center: an odd remainder goes left if the width is odd.
        PaddingSide::Center => room / 2 + (room & width & 1),
    };
    let mut out = Builder::new(meter)?;
    out.pad(fill, before)?;
    out.text(text)?;
    out.pad(fill, room - before)?;
    Ok(out.finish())
}
