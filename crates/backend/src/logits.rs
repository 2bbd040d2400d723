//! Rows of logits: whole rows, or only the largest.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogit {
    pub token: u32,
    pub logit: f32,
}

/// The logits of a row.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// One for each token of the vocabulary.
    Whole(&'a [f32]),
    /// The largest logits above −∞, without NaN, in ascending order of tokens. Among equal logits
    /// (0 equals −0), lower tokens are preferred.
    Largest(&'a [TokenLogit]),
}

/// Maximum number of largest logits that a caller can request per row. GPU kernels have buffers of
/// this size.
pub const MAX_TOP_LOGITS: usize = 128;

/// A request for only the largest logits of rows.
pub struct LargestLogits<'a> {
    /// For each row of [`Batch::wanted`](crate::Batch::wanted), the required number of largest
    /// logits, at most [`MAX_TOP_LOGITS`]; 0 requests the whole row.
    pub counts: &'a [usize],
    /// Called with a row's index there and its [largest logits](Logits::Largest): at least the
    /// required number, or all that are above −∞.
    pub on_largest: &'a mut dyn FnMut(usize, &[TokenLogit]),
}
