//! A device as a backend of the table of cases: matmuls from the blocks of a file, rows of embeddings, and the entries for 4-bit weights.

mod embed;
mod job;
mod product;
#[cfg(test)]
mod tests;
mod w4;

use crate::device::Device;
use crate::error::GpuError;
use job::{GpuJob, Recorded};
use latent_conformance::{Backend, Case, Job, Kernel, Level, Operands, RowOp};
use latent_types::{ActivationType, WeightLayout};
use std::sync::Arc;

/// A device whose shaders run cases.
pub struct Gpu {
    device: Arc<Device>,
}

/// The kernels in the order of their ids.
const KERNELS: [&str; 3] = ["gpu_matmul", "gpu_gather", "gpu_w4"];

impl Gpu {
    /// Opens the adapter of this number.
    ///
    /// # Errors
    /// No such adapter; a driver that does not open it.
    pub fn open(index: usize) -> Result<Gpu, GpuError> {
        Ok(Gpu::on(Device::open(index)?))
    }

    pub(crate) fn on(device: Arc<Device>) -> Gpu {
        Gpu { device }
    }
}

impl Backend for Gpu {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn levels(&self) -> Vec<Level> {
        vec![Level { name: "wgsl", available: true }]
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        let description = &self.device.description;
        vec![("f16", description.f16), ("subgroups", description.subgroups.is_some())]
    }

    fn flushes(&self) -> bool {
        true
    }

    fn kernels(&self) -> Vec<Kernel> {
        let kernel = |(id, name): (usize, &&str)| Kernel {
            name: (*name).to_owned(),
            level: "wgsl",
            missing: None,
            id,
        };
        KERNELS.iter().enumerate().map(kernel).collect()
    }

    fn serves(&self, kernel: &Kernel, case: &Case) -> bool {
        match case {
            Case::Product(case) => {
                kernel.id == 0 && (case.layout, case.activation) == (WeightLayout::Rows, ActivationType::F32)
            }
            Case::Row(case) => {
                matches!(case.op, RowOp::Embed(ty, layout) if kernel.id == 1 && embed::serves(ty, layout))
            }
            Case::W4(case) => kernel.id == 2 && w4::serves(case.op),
            _ => false,
        }
    }

    /// Runs the job once, so that what the device refuses is an error here.
    fn prepare<'o>(
        &self,
        _: &Kernel,
        case: &'o Case,
        operands: &'o Operands,
    ) -> Result<Box<dyn Job + Send + 'o>, String> {
        let device = &self.device;
        let recorded: Result<Box<dyn Recorded>, GpuError> = match (case, operands) {
            (Case::Product(case), Operands::Product(operands)) => {
                product::ProductJob::new(device, case, operands).map(|job| Box::new(job) as _)
            }
            (Case::Row(case), Operands::Row(operands)) => {
                embed::EmbedJob::new(device, case, operands).map(|job| Box::new(job) as _)
            }
            (Case::W4(case), Operands::W4(operands)) => {
                w4::W4Job::new(device, case, operands).map(|job| Box::new(job) as _)
            }
            _ => return Err(format!("no shader computes {}", case.name())),
        };
        let job = GpuJob(recorded.map_err(|error| error.to_string())?);
        job.call().map_err(|error| error.to_string())?;
        Ok(Box::new(job))
    }
}
