//! Rows of logits, whole or only their largest.

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogit {
    /// The token.
    pub token: u32,
    /// Its logit.
    pub logit: f32,
}

/// The logits of a row.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// One for each token of the vocabulary.
    Whole(&'a [f32]),
    /// The largest that are numbers above −∞, in ascending order of their tokens. Of equal ones (0 and −0 are equal) those of the lower tokens.
    Largest(&'a [TokenLogit]),
}

/// Largest logits of a row that may be asked for.
pub const MAX_TOP_LOGITS: usize = 128;

/// The wish of a caller who chooses among the largest logits of rows.
pub struct LargestLogits<'a> {
    /// For each row of [`Batch::wanted`](crate::Batch::wanted), how many of its largest logits are enough, at most [`MAX_TOP_LOGITS`]; 0 where the
    /// whole row is wanted.
    pub counts: &'a [usize],
    /// Hears of a row, by its index there, its [largest logits](Logits::Largest): at least as many as are enough, or all that are numbers above −∞.
    pub on_largest: &'a mut dyn FnMut(usize, &[TokenLogit]),
}
