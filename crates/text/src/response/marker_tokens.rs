//! Which tokens of a vocabulary mark the parts of a response.

use super::format::ResponseFormat;
use crate::tokenizer::Tokenizer;
use std::collections::HashSet;

impl ResponseFormat {
    /// The vocabulary's control tokens that are, or are in, markers of this format, for output whose text leaves control tokens out: their names go
    /// into [`ParserOptions::control_tokens`](super::ParserOptions::control_tokens), and are pushed as `special` where they come.
    pub fn marker_tokens(&self, tokenizer: &Tokenizer) -> HashSet<u32> {
        let markers = self.markers();
        let marks = |name: &str| !name.is_empty() && markers.iter().any(|marker| marker.contains(name));
        let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        ids.filter(|id| tokenizer.is_control(*id) && tokenizer.token_text(*id).is_some_and(marks)).collect()
    }
}
