//! The backends of this build. This is the only crate that names them all: programs take a backend
//! from here and give it to the engine, which knows only the traits.
//!
//! ```
//! let backend = latent_backends::by_name("cpu").unwrap();
//! assert_eq!(backend.name(), "cpu");
//! assert!(latent_backends::by_name("tpu").err().unwrap().to_string().contains("expected cpu"));
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "cases")]
mod cases;
mod device;
mod gpu;

use device::{Device, chosen, parse, unknown};
use latent_backend::{Backend, BackendError, PeakRates};
use latent_backend_cpu::CpuBackend;
#[cfg(feature = "reference")]
use latent_backend_reference::ReferenceBackend;
use latent_threads::Placement;
use latent_types::Tier;

#[cfg(feature = "cases")]
pub use cases::{DeviceKernels, hollow_kernels, kernels};
pub use device::NAMES;
pub use gpu::{GpuDevice, gpu_devices};
pub use latent_backend_cpu::{PackedFile, pack};

/// The backend for the CPU of this host.
pub fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::new())
}

/// The reference backend, which computes each operation from its definition. Other backends are
/// tested against it. It is slow, but short enough to read.
#[cfg(feature = "reference")]
pub fn reference() -> Box<dyn Backend> {
    Box::new(ReferenceBackend::default())
}

/// Checks that [`by_name`] accepts the name, without opening a device.
pub fn check_name(name: &str) -> Result<(), BackendError> {
    parse(name).map(|_| ()).ok_or_else(|| unknown(name))
}

/// Returns the backend for a value of `--device`: one of [`NAMES`], `gpu` or `gpu:N` for an
/// adapter, or `auto` for the first hardware GPU, otherwise the CPU.
///
/// # Errors
/// [`BackendError::Unsupported`], which lists the names, for any other name or if this build lacks
/// the GPU backend. [`BackendError::Device`] if the adapter does not exist or cannot be opened.
pub fn by_name(name: &str) -> Result<Box<dyn Backend>, BackendError> {
    match chosen(name)? {
        // `chosen` has replaced `auto`: it does not get here.
        Device::Cpu | Device::Auto => Ok(cpu()),
        #[cfg(feature = "reference")]
        Device::Reference => Ok(reference()),
        #[cfg(not(feature = "reference"))]
        Device::Reference => Err(BackendError::Unsupported(format!(
            "this build has no reference backend: build Latent with the feature reference, or use {}",
            latent_types::Setting::Device.to("cpu")
        ))),
        Device::Gpu(index) => gpu::open(index),
    }
}

/// Like [`by_name`], for inspecting compiled models: models are loaded without using an adapter's
/// memory, and cannot run.
pub fn hollow(name: &str) -> Result<Box<dyn Backend>, BackendError> {
    match chosen(name)? {
        Device::Gpu(index) => gpu::open_hollow(index),
        _ => by_name(name),
    }
}

/// Measures the limits of the device of `backend`. A host backend without measurements has the
/// CPU's limits.
pub fn limits(backend: &dyn Backend, placement: &Placement, tier: Tier) -> Result<PeakRates, BackendError> {
    match backend.limits(placement, tier) {
        // `NAMES` are the backends that run on the host.
        Err(BackendError::Unsupported(_)) if NAMES.contains(&backend.name()) => cpu().limits(placement, tier),
        measured => measured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_names_are_parsed() {
        assert_eq!(parse("gpu"), Some(Device::Gpu(0)));
        assert_eq!(parse("gpu:12"), Some(Device::Gpu(12)));
        assert_eq!(parse("auto"), Some(Device::Auto));
        for wrong in ["", "gpu:", "gpu:-1", "gpu:x", "gpu0", "GPU", "cuda"] {
            let error = check_name(wrong).unwrap_err().to_string();
            assert!(error.contains("cpu, reference, auto, gpu or gpu:N"), "{error}");
        }
    }

    #[test]
    fn auto_never_takes_a_software_adapter() {
        let hardware = gpu_devices().iter().any(|device| !device.software);
        assert_eq!(by_name("auto").unwrap().name(), if hardware { "gpu" } else { "cpu" });
    }

    #[test]
    fn a_missing_adapter_is_an_error_with_advice() {
        let error = by_name("gpu:9999").err().unwrap().to_string();
        let advice = ["the feature gpu", "`latent devices`", "option `device: cpu`"];
        assert!(advice.iter().any(|advice| error.contains(advice)), "{error}");
    }
}
