//! Jobs: record calls, run them and read their results.

use crate::commands::Commands;
use crate::device::Device;
use crate::error::GpuError;
use latent_conformance::KernelJob;
use std::ops::Range;
use std::sync::Arc;

/// The calls of a job.
pub(super) trait RecordedJob: Send {
    fn device(&self) -> &Arc<Device>;

    /// Adds its calls, with copy `copy` (modulo the number of copies) of the weight.
    fn record(&self, commands: &mut Commands, copy: usize) -> Result<(), GpuError>;

    /// The results of the last run.
    fn read(&self) -> Result<Vec<f32>, GpuError>;
}

/// A job of the table of cases.
pub(super) struct GpuJob(pub(super) Box<dyn RecordedJob>);

impl GpuJob {
    /// Runs once, and waits for the device.
    pub(super) fn call(&self, copy: usize) -> Result<(), GpuError> {
        self.recorded(copy..copy + 1)?.submit(&[])?;
        self.0.device().wait()
    }

    /// The calls of several runs.
    fn recorded(&self, copies: Range<usize>) -> Result<Commands, GpuError> {
        let mut commands = Commands::new(self.0.device());
        copies.into_iter().try_for_each(|copy| self.0.record(&mut commands, copy))?;
        Ok(commands)
    }
}

impl KernelJob for GpuJob {
    fn run(&mut self, copy: usize) {
        // If the device fails, `results` are empty and `promises` reports the error.
        let _ = self.call(copy);
    }

    fn time(&mut self, copies: Range<usize>) -> Result<f64, String> {
        // One list of commands for all runs, so that the time of submitting is not measured for
        // each.
        let seconds = self.recorded(copies).and_then(Commands::seconds);
        seconds.map_err(|error| error.to_string())
    }

    fn results(&self) -> Vec<f32> {
        self.0.read().unwrap_or_default()
    }

    /// Checks that a second run gives the same bits.
    fn promises(&mut self) -> Result<(), String> {
        let first = self.results();
        self.call(0).map_err(|error| error.to_string())?;
        let again = self.0.read().map_err(|error| error.to_string())?;
        let same = first.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
        if same && first.len() == again.len() { Ok(()) } else { Err("two runs differ".into()) }
    }
}
