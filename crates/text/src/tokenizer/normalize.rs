//! Normalizers: transform a text before it is split.

use super::bytes;
use super::pattern::SplitPattern;
use crate::error::TextError;
use std::borrow::Cow;
use unicode_normalization_alignments::{
    UnicodeNormalization, char::canonical_combining_class, char::is_combining_mark,
};

/// A step of normalization.
pub(super) enum Normalizer {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    Strip {
        left: bool,
        right: bool,
    },
    StripAccents,
    /// Prepends this to a non-empty text.
    Prepend(String),
    /// `shrinks` as in [`Normalizer::shrinks`].
    Replace {
        pattern: SplitPattern,
        content: String,
        shrinks: Option<usize>,
    },
    /// Bytes become characters, as in byte-level vocabularies.
    ByteLevel,
}

/// Maximum growth factor of a text, beyond [`GROWTH_FREE`]. NFKC makes eleven times as many bytes
/// of a few Arabic ligatures. Hostile files can chain replacements that grow without bound.
const MAX_GROWTH: usize = 12;

/// Number of bytes by which any text may grow.
const GROWTH_FREE: usize = 1 << 16;

/// Maximum number of consecutive combining marks. Canonical ordering buffers all of them. Real text
/// has three at most.
const MAX_MARKS: usize = 1 << 16;

/// Applies the steps in order.
///
/// # Errors
/// A text that exceeds [`MAX_GROWTH`] or [`MAX_MARKS`].
pub(super) fn normalize<'a>(steps: &[Normalizer], text: &'a str) -> Result<Cow<'a, str>, TextError> {
    let limit = text.len().saturating_mul(MAX_GROWTH).saturating_add(GROWTH_FREE);
    let mut text = Cow::Borrowed(text);
    for step in steps {
        // The limit is of the original text, so that growth cannot accumulate over steps.
        if let Some(changed) = step.apply(&text, limit)? {
            text = Cow::Owned(changed);
        }
        if text.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(text)
}

impl Normalizer {
    /// Maximum number of bytes of text that become one byte; `None` if unbounded.
    pub(super) fn shrinks(&self) -> Option<usize> {
        match self {
            // A character of four bytes can become one of one byte.
            Normalizer::Nfc
            | Normalizer::Nfd
            | Normalizer::Nfkc
            | Normalizer::Nfkd
            | Normalizer::Lowercase => Some(4),
            Normalizer::Prepend(_) | Normalizer::ByteLevel => Some(1),
            Normalizer::Replace { shrinks, .. } => *shrinks,
            // Any amount of text can be dropped.
            Normalizer::Strip { .. } | Normalizer::StripAccents => None,
        }
    }

    /// The changed text; `None` if it is unchanged.
    fn apply(&self, text: &str, limit: usize) -> Result<Option<String>, TextError> {
        let composed = |chars: &mut dyn Iterator<Item = (char, isize)>| {
            collect(chars.map(|(c, _)| c), text.len(), limit)
        };
        let is_form = matches!(self, Normalizer::Nfc | Normalizer::Nfd | Normalizer::Nfkc | Normalizer::Nfkd);
        if is_form {
            marks(text)?;
            // No normalization form changes ASCII. Most text needs no copy.
            if text.is_ascii() {
                return Ok(None);
            }
        }
        Ok(match self {
            Normalizer::Nfc => Some(composed(&mut text.nfc())?),
            Normalizer::Nfd => Some(composed(&mut text.nfd())?),
            Normalizer::Nfkc => Some(composed(&mut text.nfkc())?),
            Normalizer::Nfkd => Some(composed(&mut text.nfkd())?),
            // Lower case can be longer: `İ` becomes two characters.
            Normalizer::Lowercase => {
                Some(collect(text.chars().flat_map(char::to_lowercase), text.len(), limit)?)
            }
            Normalizer::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                Some(if *right { text.trim_end() } else { text }.to_owned())
            }
            Normalizer::StripAccents => Some(text.chars().filter(|c| !is_combining_mark(*c)).collect()),
            Normalizer::Prepend(_) if text.is_empty() => None,
            Normalizer::Prepend(prefix) => {
                let mut whole = String::with_capacity(prefix.len() + text.len());
                whole.push_str(prefix);
                whole.push_str(text);
                Some(whole)
            }
            Normalizer::Replace { pattern, content, .. } => Some(replaced(pattern, content, text, limit)?),
            Normalizer::ByteLevel => Some(bytes::mapped(text.as_bytes())),
        })
    }
}

/// Collects characters, unless they exceed `limit` bytes.
fn collect(chars: impl Iterator<Item = char>, bytes: usize, limit: usize) -> Result<String, TextError> {
    let mut text = String::with_capacity(bytes);
    for c in chars {
        text.push(c);
        if text.len() > limit {
            return Err(too_long(limit));
        }
    }
    Ok(text)
}

fn replaced(pattern: &SplitPattern, content: &str, text: &str, limit: usize) -> Result<String, TextError> {
    let mut whole = String::with_capacity(text.len());
    pattern.cover(text, &mut |range, matched| {
        whole.push_str(if matched { content } else { &text[range] });
        if whole.len() > limit { Err(too_long(limit)) } else { Ok(()) }
    })?;
    Ok(whole)
}

fn too_long(limit: usize) -> TextError {
    TextError::Encode(format!(
        "its normalizers make a piece of text more than {MAX_GROWTH} times as long as it is ({limit} bytes)"
    ))
}

/// Rejects a text with more than [`MAX_MARKS`] consecutive combining marks.
fn marks(text: &str) -> Result<(), TextError> {
    let mut run = 0;
    for c in text.chars() {
        run = if c.is_ascii() || canonical_combining_class(c) == 0 { 0 } else { run + 1 };
        if run > MAX_MARKS {
            return Err(TextError::Encode(format!("it has more than {MAX_MARKS} combining marks in a row")));
        }
    }
    Ok(())
}
