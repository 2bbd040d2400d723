//! The queue of steps in flight.

use latent_backend::Batch;
use std::collections::VecDeque;

pub(crate) struct StepFlight {
    pub(crate) number: u64,
    pub(crate) batch: Batch,
    /// Input and row of each row whose logits are wanted.
    pub(crate) wanted: Vec<(usize, usize)>,
}

#[derive(Default)]
pub(crate) struct Flights {
    /// Oldest first.
    pub(crate) queue: VecDeque<StepFlight>,
    /// Number of steps that have begun. It is the number of the newest step.
    pub(crate) begun: u64,
}
