//! What shaders check as they run.

use crate::device::Device;
use wgpu::ShaderRuntimeChecks;

/// The checks where the driver bounds accesses to buffers itself.
///
/// naga can bound each index into an array or a buffer, and the turns of each loop. For buffers that would only repeat what the driver does, and bounding
/// indices into workgroup memory takes 40 % of a GEMM's cycles ([docs/gpu.md](../../../docs/gpu.md#counted)).
pub(crate) const DRIVER_BOUNDS: ShaderRuntimeChecks = ShaderRuntimeChecks {
    bounds_checks: false,
    force_loop_bounding: false,
    ..ShaderRuntimeChecks::checked()
};

/// A module of a shader of this crate.
#[allow(unsafe_code, reason = "wgpu wants to hear that shaders are right which are not checked")]
pub(crate) fn module(device: &Device, wanted: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    if device.checks || !device.description.bounds_buffers() {
        return device.raw.create_shader_module(wanted);
    }
    // SAFETY: all texts are this crate's own. Their loops end, since they count to sizes that the host has written. Indices into workgroup memory are numbers of
    // threads and constants, or are kept below the length where they are made: the experts that a router has chosen among as many as it has, digits of eight bits, experts
    // of a sort (none is larger than the model has, at most `MAX_EXPERTS`), a thread's number within partly filled subgroups. A test holds modules with and without
    // checks against each other, bit by bit. Buffers are bounded by the driver.
    unsafe { device.raw.create_shader_module_trusted(wanted, DRIVER_BOUNDS) }
}
