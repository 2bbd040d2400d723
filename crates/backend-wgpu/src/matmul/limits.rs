//! Limits of indices and workgroups in shaders.

use crate::commands::GRID_WIDTH;
use crate::device::Device;
use crate::error::GpuError;

/// A size that shaders cannot count.
pub(super) fn too_large(device: &Device, value: usize) -> GpuError {
    refused(device, format!("a size of {value}, where shaders count with 32 bits, and workgroups with 16"))
}

/// A product that cannot be made.
pub(super) fn refused(device: &Device, problem: String) -> GpuError {
    GpuError::Refused { device: device.name().to_owned(), what: "a product".into(), problem }
}

/// Workgroups for `count` parts of a result, over the first and third dimension where one has not as many, and `rows` of them in the second.
pub(super) fn folded(count: usize, rows: usize, device: &Device) -> Result<[u32; 3], GpuError> {
    let across = count.clamp(1, GRID_WIDTH);
    let down = count.div_ceil(across);
    if rows > GRID_WIDTH || down > GRID_WIDTH {
        return Err(too_large(device, rows.max(count)));
    }
    Ok([across, rows, down].map(|n| n as u32))
}
