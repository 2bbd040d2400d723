//! Tokens of a rendered conversation: names of tokens count only where the template wrote them.

use super::special::Fragment;
use super::{Encode, Tokenizer};
use crate::error::TextError;
use latent_jinja::Rendered;
use std::ops::Range;

impl Tokenizer {
    /// Token ids of a rendered conversation, with the tokens that begin (and end) a prompt where the template did not
    /// write the first one itself.
    ///
    /// The name of a control token or of a user-defined one (`<think>`, `[gMASK]`) becomes that token only where all of it
    /// was written by the template, or everywhere with `allow_special`. Single characters and runs of white space that a
    /// vocabulary has as user-defined tokens are text like any other. What stands between tokens is encoded in one piece,
    /// whoever wrote it, so that conversations without such names have the ids that transformers gives them.
    ///
    /// # Errors
    /// When the text cannot be encoded.
    pub fn encode_rendered(&self, rendered: &Rendered, allow_special: bool) -> Result<Vec<u32>, TextError> {
        let bos = self.bos().and_then(|id| self.token_text(id)).filter(|text| !text.is_empty());
        let begins = bos.is_some_and(|bos| {
            rendered.text.starts_with(bos) && (allow_special || !overlaps(&rendered.content, &(0..bos.len())))
        });
        let how = Encode { add_special: !begins, parse_special: true };
        if allow_special || rendered.content.is_empty() {
            return self.encode(&rendered.text, how);
        }
        let mut ids = Vec::new();
        if how.add_special && self.add_bos {
            ids.extend(self.bos);
        }
        let text = rendered.text.as_str();
        let written =
            |range: Range<usize>, _: bool| !overlaps(&rendered.content, &range) || is_plain(&text[range]);
        let mut first = true;
        for fragment in self.special.split_where(text, written) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => self.encode_plain(text, first, &mut ids)?,
            }
            first = false;
        }
        if how.add_special && self.add_eos {
            ids.extend(self.eos);
        }
        Ok(ids)
    }
}

/// Whether a token's name is text that stands for itself: one character, or white space.
fn is_plain(text: &str) -> bool {
    text.chars().nth(1).is_none() || text.chars().all(char::is_whitespace)
}

/// Whether a range has bytes in any of the ranges, which are in order.
fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let first = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(first).is_some_and(|other| other.start < range.end)
}
