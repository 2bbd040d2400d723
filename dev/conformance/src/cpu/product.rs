//! Matmuls on the CPU.

use crate::backend::KernelJob;
use crate::product::{ProductCase, ProductOperands};
use latent_kernels::{MatmulArgs, MatmulFn, MatmulScratch, MatrixViewMut};
use latent_types::{ActivationType, KernelContract, OpKind, Tier};
use std::ops::Range;

pub(super) struct CpuProductJob<'o> {
    kernel: MatmulFn,
    without_vnni: bool,
    case: &'o ProductCase,
    operands: &'o ProductOperands,
    scratch: MatmulScratch,
    y: Vec<f32>,
}

/// Whether the kernel has an AVX-VNNI variant.
pub(super) fn may_use_avx_vnni(contract: &KernelContract) -> bool {
    contract.op == OpKind::Linear && contract.tier == Tier::Avx2 && contract.activation == ActivationType::A8
}

/// Whether a kernel computes a case.
pub(super) fn serves(contract: &KernelContract, case: &ProductCase) -> bool {
    let fits = |contract: &KernelContract| {
        contract.op == if case.across { OpKind::LinearT } else { OpKind::Linear }
            && contract.layout == case.layout
            && contract.activation == case.activation
    };
    let own = |contract: &KernelContract| fits(contract) && contract.weight == Some(case.weight);
    // A generic kernel serves the formats without a specialized one, as in kernel selection.
    own(contract)
        || (fits(contract)
            && contract.weight.is_none()
            && !latent_kernels::table().iter().any(|(other, _)| own(other)))
}

impl<'o> CpuProductJob<'o> {
    pub(super) fn new(
        kernel: MatmulFn,
        without_vnni: bool,
        case: &'o ProductCase,
        operands: &'o ProductOperands,
    ) -> CpuProductJob<'o> {
        // NaN: an output that the kernel does not write fails the comparison.
        let y = vec![f32::NAN; case.rows * case.outputs];
        CpuProductJob { kernel, without_vnni, case, operands, scratch: MatmulScratch::default(), y }
    }

    fn part(&mut self, index: Option<&[u32]>, rows: usize, outs: Range<usize>, y: &mut [f32], copy: usize) {
        let cols = outs.len();
        let (weight, acts) = (self.operands.weight(self.case, copy), self.operands.acts(self.case));
        let mut y = MatrixViewMut::new(y, rows, cols, cols);
        // The switch is process-wide. Concurrent jobs are not disturbed, because both variants give
        // the same bits.
        latent_kernels::allow_avx_vnni(!self.without_vnni);
        let args = MatmulArgs { weight: &weight, input: &acts, row_ids: index, outputs: outs, y: &mut y };
        (self.kernel)(args, &mut self.scratch);
        latent_kernels::allow_avx_vnni(true);
    }
}

impl KernelJob for CpuProductJob<'_> {
    fn run(&mut self, copy: usize) {
        let mut y = std::mem::take(&mut self.y);
        self.part(None, self.case.rows, 0..self.case.outputs, &mut y, copy);
        self.y = y;
    }

    fn results(&self) -> Vec<f32> {
        self.y.clone()
    }

    /// Checks that every partition of rows and outputs gives the same bits.
    fn promises(&mut self) -> Result<(), String> {
        let (rows, outputs) = (self.case.rows, self.case.outputs);
        // A transposed weight can be divided only at block boundaries. Otherwise, 5 cuts inside of
        // vectors and tiles.
        let cut =
            if self.case.across { self.case.weight.block_len().max(16).min(outputs) } else { 5.min(outputs) };
        for outs in [cut..outputs, 0..cut, cut..(outputs - cut).max(cut)] {
            let cols = outs.len();
            let mut part = vec![f32::NAN; rows * cols];
            self.part(None, rows, outs.clone(), &mut part, 0);
            for i in 0..rows {
                let whole = &self.y[i * outputs..(i + 1) * outputs];
                if !same(&part[i * cols..(i + 1) * cols], &whole[outs.clone()]) {
                    return Err(format!("outputs {outs:?} differ when they are computed alone, in row {i}"));
                }
            }
        }
        // Two rows, and all of them, in reverse order.
        for count in [2, rows] {
            let index: Vec<u32> = (0..count).map(|i| ((2 * rows - 1 - i) % rows) as u32).collect();
            let mut picked = vec![f32::NAN; count * outputs];
            self.part(Some(&index), count, 0..outputs, &mut picked, 0);
            for (i, row) in index.iter().map(|row| *row as usize).enumerate() {
                if !same(&picked[i * outputs..(i + 1) * outputs], &self.y[row * outputs..(row + 1) * outputs])
                {
                    return Err(format!("row {row} differs when it is picked by an index"));
                }
            }
        }
        Ok(())
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
