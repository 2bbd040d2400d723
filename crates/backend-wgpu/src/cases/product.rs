//! Cases of matmuls.

use super::job::RecordedJob;
use crate::GpuError;
use crate::buffers::{Buffer, float_bytes, floats};
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::product::{ProductItems, RowAddress, SlotMatrix, WeightSlice, multiply};
use crate::matmul::products::ProductContext;
use crate::matmul::weight::{DeviceWeight, DeviceWeightShape, HostScales};
use latent_conformance::{ProductCase, ProductOperands};
use latent_types::WeightLayout;
use std::sync::Arc;

/// A matmul with all rows of a weight, or with some of them.
pub(super) struct GpuProductJob {
    device: Arc<Device>,
    /// Copies of the weight, which measurements use in turn so that none stays in a cache.
    weights: Vec<DeviceWeight>,
    part: WeightSlice,
    items: ProductItems,
    y: Buffer,
    /// The number of results.
    count: usize,
}

impl GpuProductJob {
    pub(super) fn new(
        products: &Arc<ProductContext>,
        case: &ProductCase,
        operands: &ProductOperands,
    ) -> Result<GpuProductJob, GpuError> {
        let device = products.device();
        // In a transposed matmul, each row of the weight belongs to one input.
        let (rows, inputs) =
            if case.across { (case.inputs, case.outputs) } else { (case.outputs, case.inputs) };
        let shape = DeviceWeightShape { inputs, outputs: rows + case.skipped, matrices: 1 };
        let upload = |copy: usize| {
            let matrix = operands.weight(case, copy);
            // Tiles are a layout of the CPU: shaders read the blocks of the file.
            let bytes = if case.layout == WeightLayout::Rows { matrix.bytes() } else { operands.file() };
            let scales = matrix.scales().map(|s| HostScales {
                numbers: s.numbers,
                rows: s.rows,
                inputs: s.cols,
                per_matrix: false,
            });
            DeviceWeight::upload_for(products, "weight", (case.weight, shape), bytes, scales)
        };
        let x = Buffer::with(device, "x", &float_bytes(operands.inputs()))?;
        let count = case.rows * case.outputs;
        let y = Buffer::new(device, "y", 4 * count as u64)?;
        let (from, to) = (RowAddress::rows(&x, 1, case.inputs), RowAddress::rows(&y, 1, case.outputs));
        Ok(GpuProductJob {
            device: Arc::clone(device),
            weights: (0..operands.copies()).map(upload).collect::<Result<_, _>>()?,
            part: WeightSlice { rows: case.skipped..rows + case.skipped, transposed: case.across },
            items: ProductItems { rows: 0..case.rows, slots: 1, x: from, y: to },
            y,
            count,
        })
    }
}

impl RecordedJob for GpuProductJob {
    fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn record(&self, commands: &mut Commands, copy: usize) -> Result<(), GpuError> {
        let weight = &self.weights[copy % self.weights.len()];
        multiply(commands, (weight, &self.part), &self.items, &SlotMatrix::One)
    }

    fn read(&self) -> Result<Vec<f32>, GpuError> {
        Ok(floats(&self.y.read("y", 0..4 * self.count as u64)?))
    }
}
