//! Enumeration of the machine's adapters.

use crate::coop_matrix::CoopMatrix;
use crate::driver_messages;
use crate::error::GpuError;
use crate::ready::ready;
use std::fmt;

/// What kind of device an adapter is, the preferred first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the memory of the host.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// The driver does not say.
    Unknown,
    /// A program that runs shaders on the CPU, such as Mesa's lavapipe: right, and slower than the CPU backend.
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

/// An adapter: a device that could be opened, and what it offers.
#[derive(Clone, Debug)]
pub struct AdapterDescription {
    /// The name of the device.
    pub name: String,
    /// What it is.
    pub kind: AdapterKind,
    /// The interface that it is reached through: `Vulkan`, `Metal`, `DX12`.
    pub interface: &'static str,
    /// Its driver, with the version.
    pub driver: String,
    /// The largest buffer, in bytes.
    pub max_buffer: u64,
    /// The most bytes of a buffer that one shader sees.
    pub max_binding: u64,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Invocations of a workgroup.
    pub workgroup_size: u32,
    /// Whether shaders compute in f16.
    pub f16: bool,
    /// Smallest and largest subgroup, where shaders can use them.
    pub subgroups: Option<(u32, u32)>,
    /// Whether shaders can be timed.
    pub timestamps: bool,
    /// Cooperative matrices, as `M×N×K inputs → sums`.
    pub matrices: Vec<String>,
    /// Those of them that products can use, larger ones last.
    pub coop_matrices: Vec<CoopMatrix>,
}

impl AdapterDescription {
    /// Reads it from the driver.
    pub(crate) fn of(adapter: &wgpu::Adapter) -> AdapterDescription {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        let matrices = adapter.cooperative_matrix_properties();
        let experimental = features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX) && subgroups;
        let sizes = subgroup_sizes(&info);
        let coop_matrices = if experimental { usable(&matrices, chosen_subgroup(&info)) } else { Vec::new() };
        let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ");
        // browsers keep it to themselves
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

    /// Whether it is a program on the CPU.
    pub(crate) fn is_software(&self) -> bool {
        self.kind == AdapterKind::Software
    }

    /// Whether its driver keeps accesses inside of buffers: every Vulkan driver does (`robustBufferAccess`, which wgpu asks for).
    pub(crate) fn bounds_buffers(&self) -> bool {
        self.interface == "Vulkan"
    }

    /// Whether its memory is that of the host.
    pub(crate) fn shares_memory(&self) -> bool {
        matches!(self.kind, AdapterKind::Integrated | AdapterKind::Software)
    }

    /// Whether a browser compiles the shaders: its WGSL wants directives for subgroups that wgpu's refuses, and need not know packed dot products.
    pub(crate) fn in_page(&self) -> bool {
        self.interface == "WebGPU"
    }

    /// The smallest subgroup, if lanes of all sizes that the adapter may choose can add their sums: 8 to 64.
    pub(crate) fn subgroup_sums(&self) -> Option<usize> {
        let (least, most) = self.subgroups?;
        let fit = [least, most].iter().all(|size| size.is_power_of_two() && (8..=64).contains(size));
        (fit && !self.in_page()).then_some(least as usize)
    }
}

/// Smallest and largest subgroup. wgpu takes what any driver of Metal might have; Apple's own GPUs have 32 lanes.
fn subgroup_sizes(info: &wgpu::AdapterInfo) -> (u32, u32) {
    match info.backend {
        wgpu::Backend::Metal if info.name.starts_with("Apple") => (32, 32),
        _ => (info.subgroup_min_size, info.subgroup_max_size),
    }
}

/// Subgroup size of kernels with cooperative matrices: a workgroup has four subgroups. If the
/// adapter supports several sizes, the choice is known only for Mesa's AMD driver.
fn chosen_subgroup(info: &wgpu::AdapterInfo) -> Option<u32> {
    let size = match subgroup_sizes(info) {
        (32, 64) if info.driver == "radv" => 64,
        (least, most) if least == most => least,
        _ => return None,
    };
    (8..=64).contains(&size).then_some(size)
}

/// Cooperative matrices that products can use: squares with sums in f32.
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

/// The adapters of this machine, the preferred first: their place here is their number in `--device gpu:N`. None where no driver is installed.
pub fn adapters() -> Vec<AdapterDescription> {
    all().iter().map(|(_, description)| description.clone()).collect()
}

/// The part of the memory that the driver offers which buffers may fill.
const BUDGET_PERCENT: u8 = 98;

/// The same with what opens them.
fn all() -> Vec<(wgpu::Adapter, AdapterDescription)> {
    let found = driver_messages::without_desktop(|| {
        let backends = wgpu::Backends::PRIMARY;
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends,
            // neither the environment's settings nor debugging layers: what runs is what was asked for
            flags: wgpu::InstanceFlags::empty(),
            // where the driver says how much there is, more is refused rather than put into the host's memory
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
    // stable: of equal ones, the driver's order
    found.sort_by_key(|(_, description)| description.kind);
    found
}

/// An adapter that offers the same and runs nothing: what would run on the other can be looked at, even if its driver does not open.
pub(crate) fn imitation(
    adapter: &wgpu::Adapter,
    description: &AdapterDescription,
) -> Result<wgpu::Adapter, GpuError> {
    let (least, most) = description.subgroups.unzip();
    let mut wanted = wgpu::InstanceDescriptor::new_without_display_handle();
    wanted.backends = wgpu::Backends::NOOP;
    wanted.flags = wgpu::InstanceFlags::empty();
    wanted.backend_options.noop = wgpu::NoopBackendOptions {
        enable: true,
        features: Some(adapter.features()),
        limits: Some(adapter.limits()),
        subgroup_min_size: least,
        subgroup_max_size: most,
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
