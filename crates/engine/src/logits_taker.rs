//! Receivers of a step's logits, and the part of each row that they need.

use latent_backend::{Logits, TokenLogit};

/// Receives the logits of a step, by input and row within the input.
///
/// Most samplers need only the largest logits. A GPU then copies these instead of the whole row.
pub(crate) trait LogitsTaker {
    /// How many of the row's largest logits suffice. 0: the whole row is needed.
    fn enough(&self, input: usize, row: usize) -> usize;

    /// Receives the whole row, or its largest logits if those suffice.
    fn take(&mut self, input: usize, row: usize, logits: Logits<'_>);
}

/// Receives whole rows.
pub(crate) struct WholeRows<'s>(pub(crate) &'s mut dyn FnMut(usize, usize, &[f32]));

impl LogitsTaker for WholeRows<'_> {
    fn enough(&self, _input: usize, _row: usize) -> usize {
        0
    }

    fn take(&mut self, input: usize, row: usize, logits: Logits<'_>) {
        if let Logits::Whole(logits) = logits {
            (self.0)(input, row, logits);
        }
    }
}

/// Forwards logits with row numbers increased by `by`.
pub(crate) struct ShiftedRows<'t> {
    pub(crate) taker: &'t mut dyn LogitsTaker,
    pub(crate) by: usize,
}

impl LogitsTaker for ShiftedRows<'_> {
    fn enough(&self, input: usize, row: usize) -> usize {
        self.taker.enough(input, row + self.by)
    }

    fn take(&mut self, input: usize, row: usize, logits: Logits<'_>) {
        self.taker.take(input, row + self.by, logits);
    }
}

/// A copy of the logits of a row, until a token is chosen. Both buffers are reused.
#[derive(Default)]
pub(crate) struct KeptLogits {
    whole: Vec<f32>,
    largest: Vec<TokenLogit>,
    /// Whether `largest` is valid, not `whole`.
    cut: bool,
}

impl KeptLogits {
    /// Copies logits, which replace the previous ones.
    pub(crate) fn keep(&mut self, logits: Logits<'_>) {
        match logits {
            // Copied: the backend's buffer is reused by the next step, and a late answer chooses
            // after that.
            Logits::Whole(logits) => {
                self.whole.clear();
                self.whole.extend_from_slice(logits);
                self.cut = false;
            }
            Logits::Largest(logits) => {
                self.largest.clear();
                self.largest.extend_from_slice(logits);
                self.cut = true;
            }
        }
    }

    pub(crate) fn logits(&self) -> Logits<'_> {
        if self.cut { Logits::Largest(&self.largest) } else { Logits::Whole(&self.whole) }
    }

    /// The whole row. `None` if only the largest logits were kept.
    pub(crate) fn whole_mut(&mut self) -> Option<&mut [f32]> {
        if self.cut { None } else { Some(&mut self.whole) }
    }
}
