//! The interface of a backend: it lists its kernels and prepares jobs.

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
    /// Unique name in the backend.
    pub name: String,
    /// Level that it is compiled for, one of the backend's [levels](CaseBackend::levels).
    pub level: &'static str,
    /// The features that this machine lacks.
    pub missing: Option<String>,
    /// Index in the backend.
    pub id: usize,
}

/// A kernel with the operands of one case, which can be run repeatedly.
pub trait KernelJob {
    /// Runs once, reading copy `copy` (modulo their number) of the weight or cached rows.
    fn run(&mut self, copy: usize);

    /// Runs once per copy and returns the total seconds.
    fn time(&mut self, copies: Range<usize>) -> Result<f64, String> {
        let start = Instant::now();
        copies.for_each(|copy| self.run(copy));
        Ok(start.elapsed().as_secs_f64())
    }

    /// The results of the last run as f32, including quants and indices.
    fn results(&self) -> Vec<f32>;

    /// Checks further properties after a run, for example that a partition of a call gives the same
    /// bits.
    fn promises(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// A compilation target of kernels: an instruction-set tier or a kind of device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelLevel {
    pub name: &'static str,
    /// Whether this machine supports it.
    pub available: bool,
}

/// A backend under test.
pub trait CaseBackend: Sync {
    fn name(&self) -> &'static str;

    /// Levels that its kernels are compiled for, slowest first.
    fn levels(&self) -> Vec<KernelLevel>;

    /// Further CPU features: name, and whether the machine has it.
    fn features(&self) -> Vec<(&'static str, bool)>;

    /// Whether it may flush subnormal f32 to 0, as GPUs do.
    fn flushes(&self) -> bool {
        false
    }

    /// All its kernels, including those that this machine cannot run.
    fn kernels(&self) -> Vec<CaseKernel>;

    /// The cases to measure.
    fn real_sizes(&self) -> Vec<KernelCase> {
        real_sizes()
    }

    /// Whether a kernel computes a case.
    fn serves(&self, kernel: &CaseKernel, case: &KernelCase) -> bool;

    /// Arithmetic of a kernel, if it differs from the activation type.
    fn arithmetic(&self, _: &CaseKernel, _: &KernelCase) -> Option<Arithmetic> {
        None
    }

    /// The device calls of a case, without running them.
    ///
    /// # Errors
    /// A backend whose kernels are functions always returns an error.
    fn count(&self, _: &CaseKernel, _: &KernelCase, _: &CaseOperands) -> Result<Vec<KernelCalls>, String> {
        Err("kernels of this device are functions, which have no workgroups".into())
    }

    /// Prepares a job. Called only for kernels that the machine can run.
    fn prepare<'o>(
        &self,
        kernel: &CaseKernel,
        case: &'o KernelCase,
        operands: &'o CaseOperands,
    ) -> Result<Box<dyn KernelJob + Send + 'o>, String>;
}
