//! The names that `--device` accepts.

use crate::gpu::gpu_devices;
use latent_backend::BackendError;

/// The backends that this build has on every machine, the default first.
pub const NAMES: &[&str] = if cfg!(feature = "reference") { &["cpu", "reference"] } else { &["cpu"] };

/// A value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The first hardware GPU, otherwise the CPU.
    Auto,
    Cpu,
    Reference,
    /// The adapter with this number.
    Gpu(usize),
}

/// Parses a device name, without looking for devices. None for an unknown name. `reference` is
/// known to every build, so that its absence gets an error of its own.
pub(crate) fn parse(name: &str) -> Option<Device> {
    Some(match name {
        "auto" => Device::Auto,
        "cpu" => Device::Cpu,
        "reference" => Device::Reference,
        "gpu" => Device::Gpu(0),
        name => Device::Gpu(name.strip_prefix("gpu:")?.parse().ok()?),
    })
}

/// The error for an unknown name.
pub(crate) fn unknown(name: &str) -> BackendError {
    BackendError::Unsupported(format!(
        "unknown device {name:?}: expected {}, auto, gpu or gpu:N",
        NAMES.join(", ")
    ))
}

/// Parses a device name and replaces `auto`: by a GPU if there is one, else by the CPU.
pub(crate) fn chosen(name: &str) -> Result<Device, BackendError> {
    Ok(match parse(name).ok_or_else(|| unknown(name))? {
        Device::Auto => {
            // A software adapter computes on the CPU too, but without the CPU backend's kernels.
            let gpu = gpu_devices().iter().position(|device| !device.software);
            gpu.map_or(Device::Cpu, Device::Gpu)
        }
        device => device,
    })
}
