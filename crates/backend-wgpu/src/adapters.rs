//! Enumeration of the machine's adapters.

use crate::coop_matrix::CoopMatrix;
use crate::driver_messages;
use crate::error::GpuError;
use crate::ready::ready;
use std::fmt;

/// The kind of an adapter's device. Preferred kinds come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the memory of the host.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// The driver reports no kind.
    Unknown,
    /// A software adapter that runs shaders on the CPU, such as Mesa's lavapipe. Slower than the
    /// CPU backend.
    Software,
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdapterKind::Discrete => "discrete GPU",
            AdapterKind::Integrated => "integrated GPU",
            AdapterKind::Virtual => "virtual GPU",
            AdapterKind::Unknown => "unknown kind",
            AdapterKind::Software => "software on the CPU",
        })
    }
}

/// An adapter (a device that can be opened) and its capabilities.
#[derive(Clone, Debug)]
pub struct AdapterDescription {
    /// The name of the device.
    pub name: String,
    pub kind: AdapterKind,
    /// The graphics API: `Vulkan`, `Metal`, `DX12`, or `WebGPU` in browsers.
    pub interface: &'static str,
    /// The driver and its version.
    pub driver: String,
    /// Maximum size of a buffer in bytes.
    pub max_buffer: u64,
    /// Maximum bytes of a buffer that one shader can access.
    pub max_binding: u64,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Maximum invocations per workgroup.
    pub workgroup_size: u32,
    /// Whether shaders can compute in f16.
    pub f16: bool,
    /// Minimum and maximum subgroup size, if shaders can use subgroups.
    pub subgroups: Option<(u32, u32)>,
    /// Whether shaders can be timed.
    pub timestamps: bool,
    /// Cooperative matrices, as `M×N×K inputs → sums`.
    pub matrices: Vec<String>,
    /// The cooperative matrices that products can use, in ascending order of size.
    pub coop_matrices: Vec<CoopMatrix>,
}

impl AdapterDescription {
    /// Reads the description from the driver.
    pub(crate) fn of(adapter: &wgpu::Adapter) -> AdapterDescription {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        let matrices = adapter.cooperative_matrix_properties();
        let experimental = features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) && subgroups;
        let sizes = subgroup_sizes(&info);
        let coop_matrices = if experimental { usable(&matrices, chosen_subgroup(&info)) } else { Vec::new() };
        let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ");
        // Browsers hide the name, against fingerprinting.
        let name = if info.name.is_empty() { "the browser's WebGPU adapter".to_owned() } else { info.name };
        AdapterDescription {
            name,
            kind: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => AdapterKind::Discrete,
                wgpu::DeviceType::IntegratedGpu => AdapterKind::Integrated,
                wgpu::DeviceType::VirtualGpu => AdapterKind::Virtual,
                wgpu::DeviceType::Cpu => AdapterKind::Software,
                wgpu::DeviceType::Other => AdapterKind::Unknown,
            },
            interface: match info.backend {
                wgpu::Backend::Vulkan => "Vulkan",
                wgpu::Backend::Metal => "Metal",
                wgpu::Backend::Dx12 => "DX12",
                wgpu::Backend::BrowserWebGpu => "WebGPU",
                _ => "other",
            },
            driver: driver.trim().to_owned(),
            max_buffer: limits.max_buffer_size,
            max_binding: limits.max_storage_buffer_binding_size,
            workgroup_memory: limits.max_compute_workgroup_storage_size,
            workgroup_size: limits.max_compute_invocations_per_workgroup,
            f16: features.contains(wgpu::Features::SHADER_F16),
            subgroups: subgroups.then_some(sizes),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            matrices: matrices
                .iter()
                .map(|m| {
                    format!("{}×{}×{} {:?} → {:?}", m.m_size, m.n_size, m.k_size, m.ab_type, m.cr_type)
                        .to_lowercase()
                })
                .collect(),
            coop_matrices,
        }
    }

    pub(crate) fn is_software(&self) -> bool {
        self.kind == AdapterKind::Software
    }

    /// Whether the driver keeps accesses inside of buffers.
    pub(crate) fn bounds_buffers(&self) -> bool {
        // Every Vulkan driver supports `robustBufferAccess`, which wgpu enables.
        self.interface == "Vulkan"
    }

    /// Whether the device uses the host's memory.
    pub(crate) fn shares_memory(&self) -> bool {
        matches!(self.kind, AdapterKind::Integrated | AdapterKind::Software)
    }

    /// Whether a browser compiles the shaders. Its WGSL requires `enable` directives for subgroups,
    /// which wgpu's refuses, and may lack packed dot products.
    pub(crate) fn in_page(&self) -> bool {
        self.interface == "WebGPU"
    }

    /// The minimum subgroup size, if shaders can add sums within subgroups of every size that the
    /// adapter may choose (8 to 64).
    pub(crate) fn subgroup_sums(&self) -> Option<usize> {
        let (min, max) = self.subgroups?;
        let fit = [min, max].iter().all(|size| size.is_power_of_two() && (8..=64).contains(size));
        (fit && !self.in_page()).then_some(min as usize)
    }
}

/// Minimum and maximum subgroup size.
fn subgroup_sizes(info: &wgpu::AdapterInfo) -> (u32, u32) {
    match info.backend {
        // For Metal, wgpu reports the range of all its devices (4 to 64); Apple's GPUs have 32
        // lanes.
        wgpu::Backend::Metal if info.name.starts_with("Apple") => (32, 32),
        _ => (info.subgroup_min_size, info.subgroup_max_size),
    }
}

/// Subgroup size of kernels with cooperative matrices. It must be known, because their workgroups
/// have four subgroups.
fn chosen_subgroup(info: &wgpu::AdapterInfo) -> Option<u32> {
    let size = match subgroup_sizes(info) {
        // If an adapter supports several sizes, the driver's choice is known only for RADV.
        (32, 64) if info.driver == "radv" => 64,
        (min, max) if min == max => min,
        _ => return None,
    };
    (8..=64).contains(&size).then_some(size)
}

/// The cooperative matrices that products can use: square ones with sums in f32.
fn usable(matrices: &[wgpu::CooperativeMatrixProperties], subgroup: Option<u32>) -> Vec<CoopMatrix> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let Some(subgroup) = subgroup else { return Vec::new() };
    let squares =
        matrices.iter().filter(|m| m.m_size == m.n_size && m.n_size == m.k_size && m.cr_type == F32);
    let known = squares.filter(|m| matches!(m.ab_type, F16 | F32) && matches!(m.m_size, 8 | 16));
    let mut usable: Vec<CoopMatrix> = known
        .map(|m| CoopMatrix { side: m.m_size as usize, f16: m.ab_type == F16, subgroup: subgroup as usize })
        .collect();
    usable.sort_by_key(|matrix| matrix.side);
    usable.dedup();
    usable
}

/// The adapters of this machine, preferred ones first. The index is the number in `--device gpu:N`.
/// Empty if no driver is installed.
pub fn adapters() -> Vec<AdapterDescription> {
    all().iter().map(|(_, description)| description.clone()).collect()
}

/// Percentage of the driver's memory budget that buffers may fill.
const BUDGET_PERCENT: u8 = 98;

/// The adapters with their descriptions.
fn all() -> Vec<(wgpu::Adapter, AdapterDescription)> {
    let found = driver_messages::without_desktop(|| {
        let backends = wgpu::Backends::PRIMARY;
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends,
            // No debugging layers and no settings from the environment (`WGPU_*`).
            flags: wgpu::InstanceFlags::empty(),
            // If the driver reports a budget, larger allocations fail. Otherwise it might place
            // them in the host's memory, where they are slow.
            memory_budget_thresholds: wgpu::MemoryBudgetThresholds {
                for_resource_creation: Some(BUDGET_PERCENT),
                for_device_loss: None,
            },
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        ready(instance.enumerate_adapters(backends)).unwrap_or_default()
    });
    let mut found: Vec<_> = found
        .into_iter()
        .map(|adapter| {
            let description = AdapterDescription::of(&adapter);
            (adapter, description)
        })
        .collect();
    // A stable sort: adapters of one kind keep the driver's order, so `gpu:N` names the same
    // device.
    found.sort_by_key(|(_, description)| description.kind);
    found
}

/// An adapter of wgpu's no-op backend with the capabilities of `adapter`. It runs nothing. Calls
/// for the original can be listed with it, even if the original cannot be opened.
pub(crate) fn imitation(
    adapter: &wgpu::Adapter,
    description: &AdapterDescription,
) -> Result<wgpu::Adapter, GpuError> {
    // The no-op adapter reports the original's subgroup sizes, so that the same variants of shaders
    // are chosen.
    let (min, max) = description.subgroups.unzip();
    let mut wanted = wgpu::InstanceDescriptor::new_without_display_handle();
    wanted.backends = wgpu::Backends::NOOP;
    wanted.flags = wgpu::InstanceFlags::empty();
    wanted.backend_options.noop = wgpu::NoopBackendOptions {
        enable: true,
        features: Some(adapter.features()),
        limits: Some(adapter.limits()),
        subgroup_min_size: min,
        subgroup_max_size: max,
        ..wgpu::NoopBackendOptions::default()
    };
    let found = ready(wgpu::Instance::new(wanted).enumerate_adapters(wgpu::Backends::NOOP));
    found.into_iter().flatten().next().ok_or(GpuError::NoAdapter)
}

pub(crate) fn adapter(index: usize) -> Result<(wgpu::Adapter, AdapterDescription), GpuError> {
    let mut found = all();
    match found.len() {
        0 => Err(GpuError::NoAdapter),
        count if index >= count => Err(GpuError::NoSuchAdapter { index, count }),
        // The other adapters are dropped, so their order does not matter.
        _ => Ok(found.swap_remove(index)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(
        backend: wgpu::Backend,
        (name, driver): (&str, &str),
        (subgroup_min_size, subgroup_max_size): (u32, u32),
    ) -> wgpu::AdapterInfo {
        let own = wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, backend);
        wgpu::AdapterInfo {
            name: name.into(),
            driver: driver.into(),
            subgroup_min_size,
            subgroup_max_size,
            ..own
        }
    }

    #[test]
    fn matrices_need_a_subgroup_whose_size_is_known() {
        use wgpu::Backend::{Metal, Vulkan};
        for (backend, names, sizes, chosen) in [
            (Vulkan, ("NVIDIA H100", "NVIDIA"), (32, 32), Some(32)),
            (Vulkan, ("llvmpipe", "llvmpipe"), (8, 8), Some(8)),
            (Vulkan, ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "radv"), (32, 64), Some(64)),
            (Vulkan, ("AMD Radeon RX 7900 XTX", "AMD proprietary driver"), (32, 64), None),
            (Vulkan, ("Intel Arc", "Intel open-source Mesa driver"), (8, 32), None),
            (Vulkan, ("Adreno", "turnip Mesa driver"), (128, 128), None),
            (Metal, ("Apple M4 Max", ""), (4, 64), Some(32)),
            (Metal, ("AMD Radeon Pro 5500M", ""), (4, 64), None),
        ] {
            assert_eq!(chosen_subgroup(&info(backend, names, sizes)), chosen, "{names:?}");
        }
        assert_eq!(subgroup_sizes(&info(Metal, ("Apple M1", ""), (4, 64))), (32, 32));
    }
}
