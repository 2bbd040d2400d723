//! Limits of indices and workgroups in shaders.

use crate::commands::GRID_WIDTH;
use crate::device::Device;
use crate::error::GpuError;

/// The error for a size that exceeds the range of shaders.
pub(super) fn too_large(device: &Device, value: usize) -> GpuError {
    refused(device, format!("a size of {value}, where shaders count with 32 bits, and workgroups with 16"))
}

/// The error for a product that cannot be computed.
pub(super) fn refused(device: &Device, problem: String) -> GpuError {
    GpuError::Refused { device: device.name().to_owned(), what: "a product".into(), problem }
}

/// Workgroups for `count` parts of a result, and `rows` in the second dimension. If `count` exceeds
/// the maximum of one dimension, the first and the third are used: shaders compute `group.x +
/// group.z * groups.x`.
pub(super) fn folded(count: usize, rows: usize, device: &Device) -> Result<[u32; 3], GpuError> {
    // At least 1, since `count` may be 0 and is divided by this.
    let across = count.clamp(1, GRID_WIDTH);
    let down = count.div_ceil(across);
    if rows > GRID_WIDTH || down > GRID_WIDTH {
        return Err(too_large(device, rows.max(count)));
    }
    Ok([across, rows, down].map(|n| n as u32))
}
