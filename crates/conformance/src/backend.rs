//! The interface to what runs cases: a backend lists kernels and prepares jobs.

use crate::case::{Case, Operands};
use serde::Serialize;

/// A kernel of a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Its name, unique in the backend.
    pub name: String,
    /// The [level](Backend::levels) that it is compiled for.
    pub level: &'static str,
    /// What this machine lacks to run it.
    pub missing: Option<String>,
    /// The backend's own id.
    pub id: usize,
}

/// A kernel with the operands of one case, ready to run repeatedly.
pub trait Job {
    /// Runs once, on copy `copy` (modulo the number of copies) of the weight or KV cache.
    fn run(&mut self, copy: usize);

    /// The results of the last run, with quants and indices as floats.
    fn results(&self) -> Vec<f32>;

    /// Checks, after a run, what the kernel promises beyond its results: for example that parts of a call give the same bits as the whole.
    ///
    /// # Errors
    /// The promise that is broken.
    fn promises(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// What kernels are compiled for: an instruction-set tier, or a kind of device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// Its name.
    pub name: &'static str,
    /// Whether this machine has it.
    pub available: bool,
}

/// Runs cases.
pub trait Backend: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The levels of its kernels, slowest first.
    fn levels(&self) -> Vec<Level>;

    /// Optional features besides levels: name, and whether the machine has it.
    fn features(&self) -> Vec<(&'static str, bool)>;

    /// All its kernels, including those that this machine cannot run.
    fn kernels(&self) -> Vec<Kernel>;

    /// Whether a kernel computes a case.
    fn serves(&self, kernel: &Kernel, case: &Case) -> bool;

    /// Prepares a job. Only called for kernels that this machine can run.
    ///
    /// # Errors
    /// What is wrong, such as too little memory on a device.
    fn prepare<'o>(
        &self,
        kernel: &Kernel,
        case: &'o Case,
        operands: &'o Operands,
    ) -> Result<Box<dyn Job + Send + 'o>, String>;
}
