//! A conversation's rows in the KV cache.

use crate::cache::Sequence;

/// A conversation with a model: its cached rows and the tokens that they stand for.
#[derive(Debug, Default)]
pub struct Session {
    /// The cached rows.
    pub sequence: Sequence,
    /// The tokens of those rows. After a context shift only those before what was discarded: the rows behind it have seen other tokens, so that
    /// no later prompt may share them.
    pub tokens: Vec<u32>,
}

impl Session {
    /// Forgets what does not begin `prompt`, and at least its last token, whose logits are needed; more where a recurrent state goes back to a
    /// snapshot. Returns how many rows stay.
    pub(crate) fn keep_common(&mut self, prompt: &[u32]) -> usize {
        let same = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let of_tokens = self.sequence.embedded_from().unwrap_or(same);
        let keep = same.min(of_tokens).min(prompt.len().saturating_sub(1));
        let kept = self.sequence.truncate(keep);
        self.tokens.truncate(kept);
        kept
    }
}
