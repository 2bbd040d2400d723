//! Kernel selection for a device: by shape, or as requested.

use super::build;
use crate::error::Error;
use crate::plan::{Activations, Kernel, Options};
use crate::weight::{QuantType, Shape};

/// How a product runs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    /// The kernel.
    pub kernel: Kernel,
    /// Slices of K; 1 except for [`Kernel::Striped`].
    pub slices: usize,
    /// The name of the kernel for the type of the weight: `marlin_gemm_fused_fp4`.
    pub name: &'static str,
}

/// Largest number of rows for which the fused kernel is chosen.
// It reads the weight once for up to this number of rows, and several times for more.
const MAX_FUSED_ROWS: usize = 8;

/// With fewer tiles, K is split.
// 512 tiles are several for each of the hundred or more processors of a large GPU.
const MIN_TILES: usize = 512;

/// Smallest number of inputs of a slice.
const MIN_SLICE_INPUTS: usize = 512;

/// Columns of a tile.
const TILE_COLUMNS: usize = 64;

impl DevicePlan {
    /// Plans a product with `m` rows.
    pub(super) fn new(
        options: &Options,
        (shape, quant): (Shape, QuantType),
        m: usize,
        device: impl Fn() -> String,
    ) -> Result<DevicePlan, Error> {
        // The plan depends only on the shape, so that the order of sums does not depend on the
        // number of processors of a device.
        let Shape { k, n, .. } = shape;
        let words = k / 8;
        // The tiles that the shaders have for few and for many rows.
        let tile_rows = if m <= 16 { 16 } else { 32 };
        let tiles = m.div_ceil(tile_rows).saturating_mul(n.div_ceil(TILE_COLUMNS)).max(1);
        let useful = MIN_TILES.div_ceil(tiles).min(k / MIN_SLICE_INPUTS).max(1);
        let kernel = options.kernel.unwrap_or(match m {
            ..=MAX_FUSED_ROWS => Kernel::Fused,
            _ if useful > 1 => Kernel::Striped,
            _ => Kernel::Gemm,
        });
        let slices = match kernel {
            Kernel::Striped => options.slices.unwrap_or(useful),
            _ => 1,
        };
        // K may be 0, which is one empty slice.
        if slices == 0 || slices > words.max(1) {
            return Err(Error::Slices { slices, words });
        }
        if options.tier.is_some() {
            return Err(Error::CpuOption { option: "isa", device: device() });
        }
        let inputs = match options.activations {
            Activations::AsGiven => {
                return Ok(DevicePlan { kernel, slices, name: build::name(kernel, quant) });
            }
            Activations::Bf16 => "bf16",
            Activations::Int8 => "int8",
        };
        Err(Error::NoDeviceKernel { kernel: kernel.name(), device: device(), inputs })
    }
}
