//! Kernels of a device for the table of cases.

use crate::device::{Device, chosen};
use crate::gpu::GpuDevice;
use latent_backend::{Backend, BackendError};
use latent_backend_cpu::CpuBackend;
use latent_conformance::CpuCaseBackend;

/// Kernels of a device, and the device, which they are held against.
pub struct DeviceKernels {
    pub kernels: Box<dyn latent_conformance::CaseBackend>,
    /// What measures limits.
    pub backend: Box<dyn Backend>,
    /// The adapter, unless it is the CPU.
    pub gpu: Option<GpuDevice>,
}

/// The kernels of a device, named as for [`by_name`](crate::by_name).
///
/// # Errors
/// The same, and [`BackendError::Unsupported`] for the reference, which has none.
pub fn kernels(name: &str) -> Result<DeviceKernels, BackendError> {
    opened(name, false)
}

/// The same on an adapter without memory, whose kernels can be counted, but not run.
pub fn hollow_kernels(name: &str) -> Result<DeviceKernels, BackendError> {
    opened(name, true)
}

fn opened(name: &str, hollow: bool) -> Result<DeviceKernels, BackendError> {
    match chosen(name)? {
        Device::Gpu(index) => of_adapter(index, hollow),
        Device::Reference => Err(BackendError::Unsupported(
            "the reference backend has no kernels: it computes each operation by its definition; use cpu, gpu or gpu:N".into(),
        )),
        Device::Cpu | Device::Auto => {
            Ok(DeviceKernels { kernels: Box::new(CpuCaseBackend::new()), backend: Box::new(CpuBackend::new()), gpu: None })
        }
    }
}

#[cfg(feature = "gpu")]
fn of_adapter(index: usize, hollow: bool) -> Result<DeviceKernels, BackendError> {
    use latent_backend_wgpu::{GpuBackend, GpuCaseBackend};
    let backend = if hollow { GpuBackend::open_hollow(index)? } else { GpuBackend::open(index)? };
    Ok(DeviceKernels {
        kernels: Box::new(GpuCaseBackend::of(&backend)),
        gpu: Some(crate::gpu::described(backend.adapter())),
        backend: Box::new(backend),
    })
}

#[cfg(not(feature = "gpu"))]
fn of_adapter(_index: usize, _hollow: bool) -> Result<DeviceKernels, BackendError> {
    Err(crate::gpu::absent())
}
