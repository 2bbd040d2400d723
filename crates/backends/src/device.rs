//! Words of `--device`.

use crate::gpu::gpu_devices;
use latent_backend::BackendError;

/// The backends that this build has on every machine, the default first.
pub const NAMES: &[&str] = if cfg!(feature = "reference") { &["cpu", "reference"] } else { &["cpu"] };

/// A word of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// The first hardware GPU, otherwise the CPU.
    Auto,
    Cpu,
    Reference,
    /// The adapter of this number.
    Gpu(usize),
}

pub(crate) fn parse(name: &str) -> Option<Device> {
    Some(match name {
        "auto" => Device::Auto,
        "cpu" => Device::Cpu,
        "reference" => Device::Reference,
        "gpu" => Device::Gpu(0),
        name => Device::Gpu(name.strip_prefix("gpu:")?.parse().ok()?),
    })
}

/// The error of a word that means nothing.
pub(crate) fn unknown(name: &str) -> BackendError {
    BackendError::Unsupported(format!(
        "unknown device {name:?}: expected {}, auto, gpu or gpu:N",
        NAMES.join(", ")
    ))
}

/// Parses a device name; `auto` becomes a GPU if one is available.
pub(crate) fn chosen(name: &str) -> Result<Device, BackendError> {
    Ok(match parse(name).ok_or_else(|| unknown(name))? {
        Device::Auto => {
            let gpu = gpu_devices().iter().position(|device| !device.software);
            gpu.map_or(Device::Cpu, Device::Gpu)
        }
        device => device,
    })
}
