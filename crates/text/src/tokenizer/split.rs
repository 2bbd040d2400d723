//! Pre-tokenizers: split a text into pieces, within which characters are merged. Pieces are passed
//! on one by one, so that memory does not grow with their number.

use super::bytes;
use super::pattern::SplitPattern;
use crate::error::TextError;
use std::borrow::Cow;
use std::ops::Range;

/// A step of pre-tokenization.
pub(super) enum PreTokenizer {
    /// Splits at the matches of a pattern, or with `invert` at the text between them.
    Split { pattern: SplitMatcher, behavior: Behavior, invert: bool },
    /// Maps bytes to characters, after splitting by GPT-2's pattern, if given.
    ByteLevel { prefix_space: bool, pattern: Option<SplitPattern> },
    /// Replaces spaces by this character.
    Metaspace { replacement: char, prepend: Prepend, split: bool },
}

/// The positions at which a text is split.
pub(super) enum SplitMatcher {
    Pattern(SplitPattern),
    /// Each character with this property.
    Characters(fn(char) -> bool),
}

/// `SplitDelimiterBehavior` of the `tokenizers` library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    /// Adjacent matches become one.
    Contiguous,
}

/// Condition for prepending the replacement of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepend {
    /// Only at the beginning of a text.
    First,
    Never,
    Always,
}

/// Receives the pieces one by one: a piece, and whether it is the beginning of the whole text.
pub(super) type PieceSink<'a> = dyn FnMut(&str, bool) -> Result<(), TextError> + 'a;

/// Splits a piece by the steps in order and passes non-empty pieces to `take`.
pub(super) fn cut(
    steps: &[PreTokenizer],
    piece: &str,
    begins: bool,
    take: &mut PieceSink<'_>,
) -> Result<(), TextError> {
    // Patterns may match the empty string. An empty piece has no tokens.
    if piece.is_empty() {
        return Ok(());
    }
    let Some((step, rest)) = steps.split_first() else { return take(piece, begins) };
    step.cut(piece, begins, &mut |piece, begins| cut(rest, piece, begins, take))
}

impl PreTokenizer {
    /// Whether text can be dropped.
    pub(super) fn removes(&self) -> bool {
        matches!(self, PreTokenizer::Split { behavior: Behavior::Removed, .. })
    }

    /// Whether the step prepends the replacement of a space.
    pub(super) fn prepends_space(&self) -> bool {
        matches!(self, PreTokenizer::Metaspace { prepend: Prepend::Always | Prepend::First, .. })
    }

    /// Whether it does so only at the beginning of the whole text.
    pub(super) fn prepends_once(&self) -> bool {
        matches!(self, PreTokenizer::Metaspace { prepend: Prepend::First, .. })
    }

    fn cut(&self, piece: &str, begins: bool, take: &mut PieceSink<'_>) -> Result<(), TextError> {
        match self {
            PreTokenizer::Split { pattern, behavior, invert } => {
                let mut emit = |range: Range<usize>| take(&piece[range.clone()], begins && range.start == 0);
                let mut merging = MatchMerger::new(*behavior, &mut emit);
                pattern.cover(piece, &mut |range, matched| merging.next(range, matched != *invert))?;
                merging.finish()
            }
            PreTokenizer::ByteLevel { prefix_space, pattern } => {
                let piece = match *prefix_space && !piece.starts_with(' ') {
                    true => Cow::Owned(format!(" {piece}")),
                    false => Cow::Borrowed(piece),
                };
                // Splitting comes first: GPT-2's pattern is for text, and mapped bytes are other
                // characters.
                match pattern {
                    None => take(&bytes::mapped(piece.as_bytes()), begins),
                    Some(pattern) => pattern.cover(&piece, &mut |range, _| {
                        take(&bytes::mapped(piece[range.clone()].as_bytes()), begins && range.start == 0)
                    }),
                }
            }
            PreTokenizer::Metaspace { replacement, prepend, split } => {
                let mut spaced = String::with_capacity(piece.len() + 8);
                // A text that begins with a space gets no second one.
                let wanted = *prepend == Prepend::Always || (*prepend == Prepend::First && begins);
                if wanted && !piece.starts_with([' ', *replacement]) {
                    spaced.push(*replacement);
                }
                spaced.extend(piece.chars().map(|c| if c == ' ' { *replacement } else { c }));
                if !split {
                    return take(&spaced, begins);
                }
                // Each piece begins with the replacement of the space before its word.
                let mut start = 0;
                for (at, _) in spaced.match_indices(*replacement).filter(|(at, _)| *at > 0) {
                    take(&spaced[start..at], begins && start == 0)?;
                    start = at;
                }
                take(&spaced[start..], begins && start == 0)
            }
        }
    }
}

impl SplitMatcher {
    /// See [`SplitPattern::cover`].
    fn cover(
        &self,
        text: &str,
        each: &mut dyn FnMut(Range<usize>, bool) -> Result<(), TextError>,
    ) -> Result<(), TextError> {
        let is_match = match self {
            SplitMatcher::Pattern(pattern) => return pattern.cover(text, each),
            SplitMatcher::Characters(is_match) => is_match,
        };
        let mut done = 0;
        for (at, c) in text.char_indices().filter(|(_, c)| is_match(*c)) {
            if done < at {
                each(done..at, false)?;
            }
            done = at + c.len_utf8();
            each(at..done, true)?;
        }
        if done < text.len() { each(done..text.len(), false) } else { Ok(()) }
    }
}

/// Merges matches with adjacent text by a [`Behavior`].
struct MatchMerger<'a> {
    behavior: Behavior,
    /// The range not yet passed on, and whether it ends in a match.
    pending: Option<(Range<usize>, bool)>,
    emit: &'a mut dyn FnMut(Range<usize>) -> Result<(), TextError>,
}

impl<'a> MatchMerger<'a> {
    fn new(
        behavior: Behavior,
        emit: &'a mut dyn FnMut(Range<usize>) -> Result<(), TextError>,
    ) -> MatchMerger<'a> {
        MatchMerger { behavior, pending: None, emit }
    }

    fn next(&mut self, range: Range<usize>, matched: bool) -> Result<(), TextError> {
        let joins = match (self.behavior, &self.pending) {
            // These two need no look at neighbors, so nothing is pending.
            (Behavior::Removed, _) => return if matched { Ok(()) } else { (self.emit)(range) },
            (Behavior::Isolated, _) => return (self.emit)(range),
            (_, None) => false,
            // A match joins only text, so that two adjacent matches stay separate pieces.
            (Behavior::MergedWithPrevious, Some((_, before))) => matched && !before,
            (Behavior::MergedWithNext, Some((_, before))) => *before && !matched,
            (Behavior::Contiguous, Some((_, before))) => *before == matched,
        };
        match &mut self.pending {
            Some((whole, before)) if joins => {
                whole.end = range.end;
                *before = matched;
            }
            pending => {
                if let Some((whole, _)) = pending.replace((range, matched)) {
                    (self.emit)(whole)?;
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<(), TextError> {
        match self.pending {
            Some((whole, _)) => (self.emit)(whole),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(step: PreTokenizer, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let keep = &mut |piece: &str, _: bool| {
            pieces.push(piece.to_owned());
            Ok(())
        };
        cut(&[step], text, true, keep).unwrap();
        pieces
    }

    /// The examples in the documentation of the `tokenizers` library.
    #[test]
    fn behaviors_are_those_of_the_tokenizers_library() {
        let dashes = |behavior, invert| {
            let pattern = SplitMatcher::Characters(|c| c == '-');
            pieces(PreTokenizer::Split { pattern, behavior, invert }, "the-final--countdown")
        };
        assert_eq!(dashes(Behavior::Removed, false), ["the", "final", "countdown"]);
        assert_eq!(dashes(Behavior::Isolated, false), ["the", "-", "final", "-", "-", "countdown"]);
        assert_eq!(dashes(Behavior::MergedWithPrevious, false), ["the-", "final-", "-", "countdown"]);
        assert_eq!(dashes(Behavior::MergedWithNext, false), ["the", "-final", "-", "-countdown"]);
        assert_eq!(dashes(Behavior::Contiguous, false), ["the", "-", "final", "--", "countdown"]);
        assert_eq!(dashes(Behavior::Removed, true), ["-", "-", "-"]);
    }

    #[test]
    fn metaspace_prepends_by_its_scheme() {
        let cut =
            |prepend, text| pieces(PreTokenizer::Metaspace { replacement: '▁', prepend, split: true }, text);
        assert_eq!(cut(Prepend::Always, "a b  c"), ["▁a", "▁b", "▁", "▁c"]);
        assert_eq!(cut(Prepend::Never, "a b"), ["a", "▁b"]);
        assert_eq!(cut(Prepend::First, " a"), ["▁a"]);
    }
}
