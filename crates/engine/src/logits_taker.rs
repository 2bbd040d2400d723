//! Receivers of a step's logits, and the part of each row that they need.

use latent_backend::{Logits, TokenLogit};

/// Hears logits by the input of a step and the row within it.
pub(crate) trait LogitsTaker {
    /// How many of the row's largest logits are enough; 0: all of it is wanted.
    fn enough(&self, input: usize, row: usize) -> usize;

    /// Hears the row: whole, or the largest where those were enough.
    fn take(&mut self, input: usize, row: usize, logits: Logits<'_>);
}

/// Wants whole rows.
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

/// The logits of a row, kept until a token is chosen.
#[derive(Default)]
pub(crate) struct KeptLogits {
    whole: Vec<f32>,
    largest: Vec<TokenLogit>,
    /// Whether only the largest are there.
    cut: bool,
}

impl KeptLogits {
    /// Keeps them in place of those before.
    pub(crate) fn keep(&mut self, logits: Logits<'_>) {
        match logits {
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

    /// What was kept last.
    pub(crate) fn logits(&self) -> Logits<'_> {
        if self.cut { Logits::Largest(&self.largest) } else { Logits::Whole(&self.whole) }
    }

    /// The whole row, if it is there.
    pub(crate) fn whole_mut(&mut self) -> Option<&mut [f32]> {
        if self.cut { None } else { Some(&mut self.whole) }
    }
}
