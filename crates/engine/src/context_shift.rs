//! Context shift: when the context is full, old tokens are discarded and later rows move down.

use crate::error::EngineError;
use std::ops::Range;

/// How an answer goes on when the context is full: of the tokens after the first `keep`, the older half is discarded.
///
/// The rows that stay are rotated to their new positions. They keep what they have seen of the discarded tokens: shifting continues a text, it
/// does not compute what the model would say without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextShift {
    /// Tokens at the beginning that are never discarded, such as a system message.
    pub keep: usize,
}

impl ContextShift {
    /// The rows to discard of a sequence of `len`: never more than half of it, at least one where it is longer than `keep`.
    pub fn discarded(self, len: usize) -> Range<usize> {
        let keep = self.keep.min(len);
        keep..keep + (len - keep).div_ceil(2)
    }

    /// Checks that something is left to discard.
    ///
    /// # Errors
    /// When `keep` leaves fewer than two tokens of the context.
    pub(crate) fn check(self, context: usize) -> Result<(), EngineError> {
        if self.keep.checked_add(2).is_some_and(|least| least <= context) {
            return Ok(());
        }
        let most = context.saturating_sub(2);
        Err(EngineError::Options(format!(
            "--keep {}: a context of {context} tokens cannot shift with as many kept; keep at most {most}",
            self.keep
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_half_goes_and_what_is_to_be_kept_stays() {
        let discarded = |keep, len| ContextShift { keep }.discarded(len);
        assert_eq!(discarded(0, 64), 0..32);
        assert_eq!(discarded(10, 64), 10..37);
        assert_eq!(discarded(62, 64), 62..63);
        assert_eq!(discarded(63, 64), 63..64);
        assert_eq!(discarded(usize::MAX, 64), 64..64);
        assert!(ContextShift { keep: 62 }.check(64).is_ok());
        let refused = ContextShift { keep: 63 }.check(64).unwrap_err().to_string();
        assert!(refused.contains("--keep 63") && refused.contains("at most 62"), "{refused}");
    }
}
