//! Tokens of a rendered conversation: names of tokens count only if the template wrote them.

use super::{Tokenizer, spm};
use crate::error::TextError;
use latent_jinja::RenderedText;
use std::ops::Range;

impl Tokenizer {
    /// Token ids of a rendered conversation, with the tokens that begin (and end) a prompt where the template did not
    /// write the first one itself.
    ///
    /// The name of a control token or of a user-defined one (`<think>`, `[gMASK]`) becomes that token only where all of it
    /// was written by the template, or everywhere with `allow_special`. Single characters and runs of white space that a
    /// vocabulary has as user-defined tokens are text like any other. Text between tokens is
    /// encoded in one piece, across the borders of messages, so that conversations without such
    /// names have the ids that transformers gives them.
    pub fn encode_rendered(
        &self,
        rendered: &RenderedText,
        allow_special: bool,
    ) -> Result<Vec<u32>, TextError> {
        self.encode_rendered_within(rendered, allow_special, usize::MAX)
    }

    /// The same for a conversation that must have at most `limit` tokens; see [`Tokenizer::encode_within`].
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
            let of_text = range.start.saturating_sub(prefix)..range.end - prefix;
            allow_special
                || !overlaps(&rendered.content, &of_text)
                || (!control && is_plain(&prefixed[range]))
        };
        let fragments = self.special.split_where(&prefixed, written);
        self.encode_fragments(text.len(), fragments, !begins, limit)
    }
}

/// Whether a token's name is ordinary text: one character, or white space.
fn is_plain(text: &str) -> bool {
    text.chars().nth(1).is_none() || text.chars().all(|c| c.is_whitespace() || c == spm::SPACE)
}

/// Whether a range overlaps any of the sorted ranges.
fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let first = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(first).is_some_and(|other| other.start < range.end)
}
