//! Context shift: when the context is full, old tokens are discarded and later rows move down.

use crate::error::EngineError;
use latent_types::Setting;
use std::ops::Range;

/// How an answer continues when the context is full: the oldest tokens after the first `keep` are
/// discarded.
///
/// The remaining rows are rotated to their new positions. They were computed with attention to the
/// discarded tokens and are not computed again, so a shifted text differs from one that never had
/// these tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextShift {
    /// Tokens at the beginning that are never discarded, such as a system message.
    pub keep: usize,
    /// Number of tokens after them to discard. 0: half of the rest.
    pub discard: usize,
}

impl ContextShift {
    /// The rows to discard of a sequence of `len` rows. At least one if the sequence is longer than
    /// `keep`, and not the last one unless it is the only one after `keep`.
    pub fn discarded(self, len: usize) -> Range<usize> {
        let keep = self.keep.min(len);
        let rest = len - keep;
        let wanted = if self.discard == 0 { rest.div_ceil(2) } else { self.discard };
        keep..keep + wanted.min(rest.saturating_sub(1).max(1)).min(rest)
    }

    /// Checks that a full context has tokens to discard.
    ///
    /// # Errors
    /// When `keep` leaves fewer than two tokens of the context.
    pub(crate) fn check(self, context: usize) -> Result<(), EngineError> {
        // One token to discard, and the last one, which stays.
        if self.keep.checked_add(2).is_some_and(|least| least <= context) {
            return Ok(());
        }
        let most = context.saturating_sub(2);
        Err(EngineError::Options(format!(
            "{}: too many kept tokens for a context of {context} tokens; keep at most {most}",
            Setting::Keep.to(self.keep)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_half_after_the_kept_tokens_is_discarded() {
        let discarded = |keep, len| ContextShift { keep, discard: 0 }.discarded(len);
        assert_eq!(discarded(0, 64), 0..32);
        assert_eq!(discarded(10, 64), 10..37);
        assert_eq!(discarded(62, 64), 62..63);
        assert_eq!(discarded(63, 64), 63..64);
        assert_eq!(discarded(usize::MAX, 64), 64..64);
        let discarded = |discard, len| ContextShift { keep: 10, discard }.discarded(len);
        assert_eq!(discarded(5, 64), 10..15);
        assert_eq!(discarded(usize::MAX, 64), 10..63);
        assert_eq!(discarded(5, 11), 10..11);
        assert_eq!(discarded(5, 10), 10..10);
        let shift = |keep| ContextShift { keep, discard: 0 };
        assert!(shift(62).check(64).is_ok());
        let refused = shift(63).check(64).unwrap_err().to_string();
        assert!(refused.contains("option `keep: 63`") && refused.contains("at most 62"), "{refused}");
    }
}
