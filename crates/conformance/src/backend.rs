//! What runs cases: a backend lists its kernels and prepares jobs.

use crate::case::{Case, Operands};
use serde::Serialize;

/// A kernel of a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Its name, unique in the backend.
    pub name: String,
    /// What it is compiled for, by its name among the backend's [levels](Backend::levels).
    pub level: &'static str,
    /// What this machine lacks to run it.
    pub missing: Option<String>,
    /// The backend's own number for it.
    pub id: usize,
}

/// A kernel with the operands of one case, ready to run as often as wanted.
pub trait Job {
    /// Runs once, reading copy `copy` (modulo their number) of the weight or cached rows.
    fn run(&mut self, copy: usize);

    /// The results of the last run, as numbers: codes and indices too.
    fn results(&self) -> Vec<f32>;

    /// What the kernel promises beyond its results, checked after a run: such as that parts of a call give the bits of the whole.
    ///
    /// # Errors
    /// Which promise is broken.
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

/// Something that runs cases.
pub trait Backend: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What its kernels are compiled for, the slowest first.
    fn levels(&self) -> Vec<Level>;

    /// What the machine offers beside its levels: names, and whether it is there.
    fn features(&self) -> Vec<(&'static str, bool)>;

    /// All its kernels, those that this machine cannot run included.
    fn kernels(&self) -> Vec<Kernel>;

    /// Whether a kernel computes a case.
    fn serves(&self, kernel: &Kernel, case: &Case) -> bool;

    /// A job. Only kernels that miss nothing are asked.
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
