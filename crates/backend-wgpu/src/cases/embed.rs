//! Cases of rows of embeddings.

use super::job::RecordedJob;
use crate::GpuError;
use crate::buffers::{Buffer, floats};
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::layout::layout;
use crate::matmul::product::{RowAddress, gather};
use crate::matmul::weight::{DeviceWeight, DeviceWeightShape};
use latent_conformance::{RowCase, RowOp, RowOperands};
use latent_types::{TensorType, WeightLayout};
use std::sync::Arc;

/// Whether decoded rows are exact, as the table demands.
pub(super) fn serves(ty: TensorType, stored: WeightLayout) -> bool {
    // If a format adds a minimum to each weight, a device may fuse the product and the sum, and
    // round once instead of twice.
    stored == WeightLayout::Rows && layout(ty).is_some_and(|layout| !layout.adds())
}

/// Decodes all rows of a weight, in order.
pub(super) struct EmbedJob {
    device: Arc<Device>,
    rows: usize,
    width: usize,
    weight: DeviceWeight,
    ids: Buffer,
    y: Buffer,
}

impl EmbedJob {
    pub(super) fn new(
        device: &Arc<Device>,
        case: &RowCase,
        operands: &RowOperands,
    ) -> Result<EmbedJob, GpuError> {
        let (rows, width) = (case.rows, case.width);
        let ty = if let RowOp::Embed(ty, _) = case.op { ty } else { TensorType::F32 };
        let shape = DeviceWeightShape { inputs: width, outputs: rows, matrices: 1 };
        let ids: Vec<u8> = (0..rows as u32).flat_map(u32::to_le_bytes).collect();
        Ok(EmbedJob {
            device: Arc::clone(device),
            rows,
            width,
            weight: DeviceWeight::upload(device, "weight", (ty, shape), &operands.bytes, None)?,
            ids: Buffer::with(device, "ids", &ids)?,
            y: Buffer::new(device, "y", 4 * (rows * width) as u64)?,
        })
    }
}

impl RecordedJob for EmbedJob {
    fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn record(&self, commands: &mut Commands, _: usize) -> Result<(), GpuError> {
        let y = RowAddress::rows(&self.y, 1, self.width);
        gather(commands, &self.weight, (&(&self.ids).into(), 0), self.rows, &y)
    }

    fn read(&self) -> Result<Vec<f32>, GpuError> {
        Ok(floats(&self.y.read("y", 0..4 * (self.rows * self.width) as u64)?))
    }
}
