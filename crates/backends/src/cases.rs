//! The kernels of a device, to run the table of cases.

use crate::device::{Device, chosen};
use crate::gpu::GpuDevice;
use latent_backend::{Backend, BackendError};
use latent_backend_cpu::CpuBackend;
use latent_conformance::CpuCaseBackend;

/// The kernels of a device, and the device, whose limits they are compared with.
pub struct DeviceKernels {
    pub kernels: Box<dyn latent_conformance::CaseBackend>,
    /// The backend, which measures the limits of the device.
    pub backend: Box<dyn Backend>,
    /// The adapter, unless it is the CPU.
    pub gpu: Option<GpuDevice>,
}

/// Opens the kernels of the device with a name, as for [`by_name`](crate::by_name).
///
/// # Errors
/// As for `by_name`. Also [`BackendError::Unsupported`] for the reference, which has no kernels.
pub fn kernels(name: &str) -> Result<DeviceKernels, BackendError> {
    opened(name, false)
}

/// Like [`kernels`], but opens an adapter without using its memory: kernels can be counted, but not
/// run.
pub fn hollow_kernels(name: &str) -> Result<DeviceKernels, BackendError> {
    opened(name, true)
}

fn opened(name: &str, hollow: bool) -> Result<DeviceKernels, BackendError> {
    match chosen(name)? {
        Device::Gpu(index) => of_adapter(index, hollow),
        Device::Reference => Err(BackendError::Unsupported(
            "the reference backend has no kernels: it computes each operation by its definition; use cpu, gpu or gpu:N".into(),
        )),
        // `chosen` has replaced `auto`: it does not get here.
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
