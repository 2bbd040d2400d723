//! Run-time checks of shaders (see `module` in `shader.rs`).

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
