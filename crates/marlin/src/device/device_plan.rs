//! The kernel of a product on a device: by shape, or as requested.

use super::build;
use crate::error::Error;
use crate::plan::{Activations, Kernel, Options};
use crate::weight::{QuantType, Shape};

/// How a product runs on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    /// The kernel.
    pub kernel: Kernel,
    /// Slices of K; 1 but for [`Kernel::Striped`].
    pub slices: usize,
    /// The name of the kernel for the type of the weight: `marlin_gemm_fused_fp4`.
    pub name: &'static str,
}

/// Most rows of a device's fused kernel, which reads the weight once for as many.
const FEW_ROWS: usize = 8;

/// Tiles below which K is split: several for each of the hundred or more processors of a large GPU.
const FEW_TILES: usize = 512;

/// Fewest inputs of a slice.
const SLICE: usize = 512;

/// Columns of a tile.
const TILE_COLUMNS: usize = 64;

impl DevicePlan {
    /// The plan of `m` rows, by the shape alone: results do not depend on how many processors a device has.
    pub(super) fn new(
        options: &Options,
        (shape, quant): (Shape, QuantType),
        m: usize,
        device: impl Fn() -> String,
    ) -> Result<DevicePlan, Error> {
        let Shape { k, n, .. } = shape;
        let words = k / 8;
        let tile_rows = if m <= 16 { 16 } else { 32 };
        let tiles = m.div_ceil(tile_rows).saturating_mul(n.div_ceil(TILE_COLUMNS)).max(1);
        let useful = FEW_TILES.div_ceil(tiles).min(k / SLICE).max(1);
        let kernel = options.kernel.unwrap_or(match m {
            ..=FEW_ROWS => Kernel::Fused,
            _ if useful > 1 => Kernel::Striped,
            _ => Kernel::Gemm,
        });
        let slices = match kernel {
            Kernel::Striped => options.slices.unwrap_or(useful),
            _ => 1,
        };
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
