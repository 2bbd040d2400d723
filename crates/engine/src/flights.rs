//! The queue of steps in flight.

use latent_backend::Batch;
use std::collections::VecDeque;

/// A step on its way.
pub(crate) struct StepFlight {
    pub(crate) number: u64,
    pub(crate) batch: Batch,
    /// Input and row of each row whose logits are wanted.
    pub(crate) wanted: Vec<(usize, usize)>,
}

/// All of them, oldest first.
#[derive(Default)]
pub(crate) struct Flights {
    pub(crate) queue: VecDeque<StepFlight>,
    /// How many have begun.
    pub(crate) begun: u64,
}
