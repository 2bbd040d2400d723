//! Encoding of a rendered conversation. Names of control tokens become tokens only if the template
//! wrote them, so that a user cannot forge turns.

use super::{Tokenizer, spm};
use crate::error::TextError;
use latent_jinja::RenderedText;
use std::ops::Range;

impl Tokenizer {
    /// Token ids of a rendered conversation. BOS and EOS are added unless the template wrote BOS.
    ///
    /// The name of a control or user-defined token (`<think>`, `[gMASK]`) becomes that token only
    /// if the template wrote all of it, or anywhere with `allow_special`. User-defined tokens that
    /// are single characters or white space are ordinary text. Text between tokens is encoded in
    /// one piece, across messages, so that conversations without such names have the ids of
    /// transformers.
    pub fn encode_rendered(
        &self,
        rendered: &RenderedText,
        allow_special: bool,
    ) -> Result<Vec<u32>, TextError> {
        self.encode_rendered_within(rendered, allow_special, usize::MAX)
    }

    /// Like [`Tokenizer::encode_rendered`] with at most `limit` tokens; see
    /// [`Tokenizer::encode_within`].
    pub fn encode_rendered_within(
        &self,
        rendered: &RenderedText,
        allow_special: bool,
        limit: usize,
    ) -> Result<Vec<u32>, TextError> {
        let text = rendered.text.as_str();
        let bos = self.bos().and_then(|id| self.token_text(id)).filter(|bos| !bos.is_empty());
        let begins = bos.is_some_and(|bos| {
            text.starts_with(bos) && (allow_special || !overlaps(&rendered.content, &(0..bos.len())))
        });
        let prefixed = self.prefixed(text);
        let prefix = prefixed.len() - text.len();
        let written = |range: Range<usize>, control: bool| {
            // Ranges of `content` do not count the prepended space.
            let of_text = range.start.saturating_sub(prefix)..range.end - prefix;
            // DeepSeek's vocabulary has letters among its user-defined tokens. They are allowed in
            // messages; a control token of one letter is not.
            allow_special
                || !overlaps(&rendered.content, &of_text)
                || (!control && is_plain(&prefixed[range]))
        };
        let fragments = self.special.split_where(&prefixed, written);
        self.encode_fragments(text.len(), fragments, !begins, limit)
    }
}

/// Whether a token's name is one character or white space.
fn is_plain(text: &str) -> bool {
    text.chars().nth(1).is_none() || text.chars().all(|c| c.is_whitespace() || c == spm::SPACE)
}

/// Whether a range overlaps any of the sorted ranges.
fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let first = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(first).is_some_and(|other| other.start < range.end)
}
