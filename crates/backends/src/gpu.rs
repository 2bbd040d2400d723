//! GPUs, if this build has their backend. Without it the same functions exist, so that the rest of
//! the crate does not depend on the feature.

use latent_backend::{Backend, BackendError};

/// The description of an adapter of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDevice {
    /// The name that its driver gives it.
    pub name: String,
    /// Kind, API and driver: `discrete GPU, Vulkan, driver NVIDIA 550.54`.
    pub kind: String,
    /// Whether it is a software adapter, which `--device auto` never selects.
    pub software: bool,
    /// Its features, one per line.
    pub offers: Vec<String>,
}

/// Lists the adapters of this machine, in the order in which `--device gpu:N` counts them from 0.
/// Empty in a build without the GPU backend.
pub fn gpu_devices() -> Vec<GpuDevice> {
    #[cfg(feature = "gpu")]
    return latent_backend_wgpu::adapters().iter().map(described).collect();
    #[cfg(not(feature = "gpu"))]
    Vec::new()
}

/// Opens an adapter.
#[cfg(feature = "gpu")]
pub(crate) fn open(index: usize) -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(latent_backend_wgpu::GpuBackend::open(index)?))
}

/// Opens an adapter without using its memory, to inspect how models are compiled for it.
#[cfg(feature = "gpu")]
pub(crate) fn open_hollow(index: usize) -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(latent_backend_wgpu::GpuBackend::open_hollow(index)?))
}

#[cfg(not(feature = "gpu"))]
pub(crate) fn open_hollow(_index: usize) -> Result<Box<dyn Backend>, BackendError> {
    Err(absent())
}

#[cfg(not(feature = "gpu"))]
pub(crate) fn open(_index: usize) -> Result<Box<dyn Backend>, BackendError> {
    Err(absent())
}

/// The error for any adapter in a build without the GPU backend.
#[cfg(not(feature = "gpu"))]
pub(crate) fn absent() -> BackendError {
    BackendError::Unsupported(format!(
        "this build has no GPU backend: build Latent with the feature gpu (a default of `cargo build --release`), or use {}",
        latent_types::Setting::Device.to("cpu")
    ))
}

/// Describes an adapter in words. Its features are listed because the choice of kernels depends on
/// them.
#[cfg(feature = "gpu")]
pub(crate) fn described(adapter: &latent_backend_wgpu::AdapterDescription) -> GpuDevice {
    use latent_backend_wgpu::KernelVariants;
    use latent_types::format_bytes;
    let or_none = |offered: Option<String>| offered.unwrap_or_else(|| "none".into());
    let yes = |offered: bool| if offered { "yes" } else { "no" };
    let subgroups = adapter.subgroups.map(|(least, most)| match least == most {
        true => least.to_string(),
        false => format!("{least} to {most}"),
    });
    let matrices = (!adapter.matrices.is_empty()).then(|| adapter.matrices.join(", "));
    GpuDevice {
        name: adapter.name.clone(),
        kind: format!("{}, {}, driver {}", adapter.kind, adapter.interface, adapter.driver),
        software: adapter.kind == latent_backend_wgpu::AdapterKind::Software,
        offers: vec![
            format!(
                "buffers up to {}, bindings up to {}",
                format_bytes(adapter.max_buffer),
                format_bytes(adapter.max_binding)
            ),
            format!(
                "workgroups of {} with {} of memory",
                adapter.workgroup_size,
                format_bytes(adapter.workgroup_memory.into())
            ),
            format!("f16: {}; timestamps: {}", yes(adapter.f16), yes(adapter.timestamps)),
            format!("subgroups: {}; cooperative matrices: {}", or_none(subgroups), or_none(matrices)),
            format!("products use: {}", KernelVariants::described(adapter)),
        ],
    }
}
