//! Cases of 4-bit weights.

use super::job::RecordedJob;
use crate::GpuError;
use crate::buffers::{Buffer, float_bytes, floats};
use crate::commands::Commands;
use crate::device::Device;
use crate::matmul::rows::BufferRows;
use crate::matmul::w4::{
    GroupScales, W4CodeKind, W4Operand, W4Weight, W4WeightShape, dequant, fused, gemm, reduce, striped,
};
use latent_conformance::{W4Case, W4Op, W4Operands, W4Rounding};
use latent_kernels::half::f16;
use latent_kernels::{W4Codes as CpuCodes, W4Matrix, W4Scales};
use std::sync::Arc;

/// Whether there is a shader: for inputs in f32. None sets memory to zero, because devices do that
/// themselves.
pub(super) fn serves(op: W4Op) -> bool {
    match op {
        W4Op::Gemm(rounding) | W4Op::Fused(rounding) | W4Op::Striped(rounding, _) => {
            rounding == W4Rounding::F32
        }
        W4Op::DequantF32 | W4Op::DequantF16 | W4Op::Reduce(_) => true,
        W4Op::Zero(_) => false,
    }
}

/// An operation on 4-bit weights.
pub(super) struct GpuW4Job {
    device: Arc<Device>,
    op: W4Op,
    rows: usize,
    shape: W4WeightShape,
    /// Copies of the weight; none if the case only adds partial sums.
    weights: Vec<W4Weight>,
    x: Buffer,
    partials: Buffer,
    y: Buffer,
}

impl GpuW4Job {
    pub(super) fn new(
        device: &Arc<Device>,
        case: &W4Case,
        operands: &W4Operands,
    ) -> Result<GpuW4Job, GpuError> {
        let shape = W4WeightShape { k: case.shape.k, n: case.shape.n, group: case.shape.group };
        let (results, slices) = match case.op {
            W4Op::DequantF32 => (shape.k * shape.n, 0),
            // Rows are whole words, of two f16 each.
            W4Op::DequantF16 => (shape.k * shape.n.div_ceil(2), 0),
            W4Op::Striped(_, slices) => (case.rows * shape.n, slices),
            _ => (case.rows * shape.n, 0),
        };
        let weights = match case.op {
            W4Op::Reduce(_) => Vec::new(),
            _ => (0..operands.copies())
                .map(|copy| upload(device, shape, operands.matrix(case, copy)))
                .collect::<Result<_, _>>()?,
        };
        Ok(GpuW4Job {
            device: Arc::clone(device),
            op: case.op,
            rows: case.rows,
            shape,
            weights,
            x: Buffer::with(device, "x", &float_bytes(&operands.x))?,
            partials: Buffer::new(device, "partial sums", 4 * (slices * case.rows * shape.n) as u64)?,
            y: Buffer::new(device, "y", 4 * results as u64)?,
        })
    }
}

fn upload(device: &Arc<Device>, shape: W4WeightShape, matrix: W4Matrix<'_>) -> Result<W4Weight, GpuError> {
    let scales = match matrix.scales() {
        W4Scales::F16(bits) => GroupScales::F16(bits),
        W4Scales::E8m0(codes) => GroupScales::E8m0(codes),
        W4Scales::E4m3 { codes, tensor } => GroupScales::E4m3(codes, tensor),
    };
    let (codes, zeros): (_, &[u8]) = match matrix.codes() {
        CpuCodes::E2m1 => (W4CodeKind::Fp4, &[]),
        CpuCodes::Int4Sym => (W4CodeKind::Int4Sym, &[]),
        CpuCodes::Int4 { zeros } => (W4CodeKind::Int4, zeros),
    };
    let operand = W4Operand { shape, words: matrix.words(), scales, codes, zeros };
    W4Weight::upload(device, "weight", &operand)
}

impl RecordedJob for GpuW4Job {
    fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn record(&self, commands: &mut Commands, copy: usize) -> Result<(), GpuError> {
        let W4WeightShape { k, n, .. } = self.shape;
        let (x, y) = (BufferRows::new(&self.x, k), BufferRows::new(&self.y, n));
        // Cases that only add partial sums have no weights: the divisor must not be 0.
        let weight = self.weights.get(copy % self.weights.len().max(1));
        match (self.op, weight) {
            (W4Op::Fused(_), Some(weight)) => fused(commands, weight, &x, &y, self.rows),
            (W4Op::Gemm(_), Some(weight)) => gemm(commands, weight, &x, &y, self.rows),
            (W4Op::Striped(_, slices), Some(weight)) => {
                striped(commands, weight, (&x, self.rows), (&self.partials, slices), &y)
            }
            (W4Op::DequantF16, Some(weight)) => {
                dequant(commands, weight, true, &BufferRows::new(&self.y, n.div_ceil(2)))
            }
            (W4Op::Reduce(slices), _) => reduce(commands, (&self.x, slices), (self.rows, n), &y),
            (_, Some(weight)) => dequant(commands, weight, false, &y),
            (_, None) => Ok(()),
        }
    }

    fn read(&self) -> Result<Vec<f32>, GpuError> {
        let W4WeightShape { k, n, .. } = self.shape;
        let count = match self.op {
            W4Op::DequantF32 => k * n,
            W4Op::DequantF16 => k * n.div_ceil(2),
            _ => self.rows * n,
        };
        let found = self.y.read("y", 0..4 * count as u64)?;
        if self.op != W4Op::DequantF16 {
            return Ok(floats(&found));
        }
        // Rows of an odd number of f16 are padded to whole words.
        let rows = found.chunks_exact(4 * n.div_ceil(2));
        let halves = rows.flat_map(|row| row.chunks_exact(2).take(n));
        Ok(halves.map(|half| f16::from_le_bytes([half[0], half[1]]).to_f32()).collect())
    }
}
