//! Time per phase of the scheduler's steps.

use super::Scheduler;
use crate::phase_times::PhaseTime;

impl Scheduler {
    /// Starts to take the time of each phase of the steps to come.
    pub fn start_phase_times(&mut self) {
        self.engine.start_phase_times();
    }

    /// Stops, and returns the times since the start.
    pub fn take_phase_times(&mut self) -> Vec<PhaseTime> {
        self.engine.take_phase_times()
    }
}
