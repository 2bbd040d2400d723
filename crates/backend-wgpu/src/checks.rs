//! Run-time checks of shaders (see `module` in `shader.rs`).

use wgpu::ShaderRuntimeChecks;

/// The checks on devices whose drivers bound accesses to buffers.
pub(crate) const DRIVER_BOUNDS: ShaderRuntimeChecks = ShaderRuntimeChecks {
    // naga can bound each index into an array or a buffer, and the iterations of each loop. For
    // buffers, that would repeat the driver's check. Bounding indices into workgroup memory takes
    // 40 % of a GEMM's cycles ([docs/gpu.md](../../../docs/gpu.md#counted)).
    bounds_checks: false,
    force_loop_bounding: false,
    ..ShaderRuntimeChecks::checked()
};
