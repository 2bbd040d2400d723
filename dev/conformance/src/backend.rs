//! Backends: a backend lists its kernels and prepares jobs.

use crate::case::{CaseOperands, KernelCase};
use crate::table::real_sizes;
use latent_graph::KernelCalls;
use latent_types::Arithmetic;
use serde::Serialize;
use std::ops::Range;
use std::time::Instant;

/// A kernel of a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseKernel {
    /// Its name, unique in the backend.
    pub name: String,
    /// Level that it is compiled for, one of the backend's [levels](CaseBackend::levels).
    pub level: &'static str,
    /// The features that this machine lacks for it.
    pub missing: Option<String>,
    /// The backend's index of it.
    pub id: usize,
}

/// A kernel with the operands of one case, ready to run as often as wanted.
pub trait KernelJob {
    /// Runs once, reading copy `copy` (modulo their number) of the weight or cached rows.
    fn run(&mut self, copy: usize);

    /// Seconds that runs with these copies take, one after the other.
    fn time(&mut self, copies: Range<usize>) -> Result<f64, String> {
        let start = Instant::now();
        copies.for_each(|copy| self.run(copy));
        Ok(start.elapsed().as_secs_f64())
    }

    /// The results of the last run as f32, quants and indices included.
    fn results(&self) -> Vec<f32>;

    /// Checks the kernel's other promises after a run, such as that parts of a call give the bits of the whole.
    fn promises(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// A target of kernels: an instruction-set tier, or a kind of device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelLevel {
    pub name: &'static str,
    /// Whether this machine supports it.
    pub available: bool,
}

/// Runs cases.
pub trait CaseBackend: Sync {
    fn name(&self) -> &'static str;

    /// Levels that its kernels are compiled for, the slowest first.
    fn levels(&self) -> Vec<KernelLevel>;

    /// Further CPU features: name, and whether the machine has it.
    fn features(&self) -> Vec<(&'static str, bool)>;

    /// Whether it may take subnormal f32 for 0, as GPUs do.
    fn flushes(&self) -> bool {
        false
    }

    /// All its kernels, including those that this machine cannot run.
    fn kernels(&self) -> Vec<CaseKernel>;

    /// The cases that are measured.
    fn real_sizes(&self) -> Vec<KernelCase> {
        real_sizes()
    }

    /// Whether a kernel computes a case.
    fn serves(&self, kernel: &CaseKernel, case: &KernelCase) -> bool;

    /// What a kernel multiplies a case in, where that is not what its activation type says.
    fn arithmetic(&self, _: &CaseKernel, _: &KernelCase) -> Option<Arithmetic> {
        None
    }

    /// The calls that a case becomes on a device, without running it.
    ///
    /// # Errors
    /// The problem. A backend whose kernels are functions always returns an error.
    fn count(&self, _: &CaseKernel, _: &KernelCase, _: &CaseOperands) -> Result<Vec<KernelCalls>, String> {
        Err("kernels of this device are functions, which have no workgroups".into())
    }

    /// A job. Called only for kernels that the machine can run.
    fn prepare<'o>(
        &self,
        kernel: &CaseKernel,
        case: &'o KernelCase,
        operands: &'o CaseOperands,
    ) -> Result<Box<dyn KernelJob + Send + 'o>, String>;
}
