//! 4-bit weights on the CPU.

use super::force::TierGuard;
use crate::backend::KernelJob;
use crate::w4::{W4Case, W4Op, W4Operands, W4Rounding};
use latent_kernels::half::f16;
use latent_kernels::{
    MatrixView, MatrixViewMut, W4Args, W4Fn, W4Input, W4Kernel, W4Scratch, W4Shape, W4Stripes,
    w4_dequant_f16, w4_reduce, w4_zero,
};
use std::ops::Range;

/// Whether a kernel computes a case.
pub(super) fn serves(kernel: &W4Kernel, case: &W4Case) -> bool {
    let rounding = case.op.rounding();
    kernel.entry == case.op.entry()
        && rounding.is_none_or(|rounding| rounding == W4Rounding::of(kernel.form) && kernel.takes(case.shape))
}

/// Rows and columns of a tile of a striped product.
// Whole panels, and several tiles in the larger cases.
const TILE: (usize, usize) = (32, 32);

pub(super) struct CpuW4Job<'o> {
    kernel: &'static W4Kernel,
    case: &'o W4Case,
    operands: &'o W4Operands,
    panels: Vec<u32>,
    partials: Vec<f32>,
    scratch: W4Scratch,
    out: Vec<f32>,
    halves: Vec<f16>,
}

impl<'o> CpuW4Job<'o> {
    pub(super) fn new(
        kernel: &'static W4Kernel,
        case: &'o W4Case,
        operands: &'o W4Operands,
    ) -> Result<CpuW4Job<'o>, String> {
        let W4Shape { k, n, .. } = case.shape;
        let results = match case.op {
            W4Op::DequantF32 | W4Op::DequantF16 => k * n,
            W4Op::Zero(slices) => slices * case.rows * n,
            _ => case.rows * n,
        };
        let halves = if case.op == W4Op::DequantF16 { vec![f16::NAN; results] } else { Vec::new() };
        let partials = match case.op {
            W4Op::Striped(_, slices) => vec![f32::NAN; slices * case.rows * n],
            _ => Vec::new(),
        };
        let mut panels = Vec::new();
        let height = kernel.form.panel_rows(case.rows);
        if case.op.rounding().is_some() && kernel.form != latent_kernels::W4Form::F32 {
            let len = kernel.form.panel_len(case.rows, k).map_err(|error| error.to_string())?;
            // All bits set, which is NaN in bf16: elements that `pack` does not write are noticed.
            panels.resize(case.rows.div_ceil(height) * len, u32::MAX);
            for (x, panel) in operands.x.chunks(height * k).zip(panels.chunks_exact_mut(len)) {
                kernel.form.pack(&MatrixView::new(x, x.len() / k, k, k), panel);
            }
        }
        let (scratch, out) = (W4Scratch::default(), vec![f32::NAN; results]);
        Ok(CpuW4Job { kernel, case, operands, panels, partials, scratch, out, halves })
    }

    fn input(&self) -> W4Input<'_> {
        let (rows, k) = (self.case.rows, self.case.shape.k);
        match self.panels.is_empty() {
            true => W4Input::from_rows(MatrixView::new(&self.operands.x, rows, k, k)),
            false => {
                W4Input::from_panels(self.kernel.form, &self.panels, rows, k).expect("panels of the case")
            }
        }
    }

    /// Computes some columns of some rows over a range of K.
    fn share(
        &mut self,
        (rows, k, columns): (Range<usize>, Range<usize>, Range<usize>),
        y: &mut MatrixViewMut<'_>,
        copy: usize,
    ) {
        let W4Fn::Matmul(function) = self.kernel.function else { return };
        // Taken out, because `input` borrows `self`.
        let mut scratch = std::mem::take(&mut self.scratch);
        let (weight, input) = (&self.operands.matrix(self.case, copy), &self.input());
        function(&W4Args { weight, input, rows, k, columns }, y, &mut scratch);
        self.scratch = scratch;
    }

    /// Computes all units of a striped product and reduces the slices.
    fn striped(&mut self, slices: usize, copy: usize) {
        let (rows, W4Shape { k, n, .. }) = (self.case.rows, self.case.shape);
        let stripes = W4Stripes { rows, columns: n, k, tile: TILE, slices };
        let mut partials = std::mem::take(&mut self.partials);
        // A slice of K may be empty; no unit writes its sums.
        w4_zero(&mut partials);
        for unit in (0..stripes.units()).map(|index| stripes.unit(index)) {
            let from = (unit.slice * rows + unit.rows.start) * n + unit.columns.start;
            let (height, width) = (unit.rows.len(), unit.columns.len());
            let mut y = MatrixViewMut::new(&mut partials[from..], height, width, n);
            self.share((unit.rows, unit.k, unit.columns), &mut y, copy);
        }
        let mut y = MatrixViewMut::new(&mut self.out, rows, n, n);
        w4_reduce(&partials, n, 0..n, &mut y);
        self.partials = partials;
    }
}

impl KernelJob for CpuW4Job<'_> {
    fn run(&mut self, copy: usize) {
        let (rows, W4Shape { k, n, .. }) = (self.case.rows, self.case.shape);
        match (self.case.op, self.kernel.function) {
            (W4Op::Striped(_, slices), _) => self.striped(slices, copy),
            (W4Op::Gemm(_) | W4Op::Fused(_), _) => {
                let mut out = std::mem::take(&mut self.out);
                self.share((0..rows, 0..k, 0..n), &mut MatrixViewMut::new(&mut out, rows, n, n), copy);
                self.out = out;
            }
            (W4Op::DequantF32, W4Fn::Dequant(decode)) => {
                let of = (&self.operands.matrix(self.case, copy), 0..k, 0..n);
                decode(of, &mut MatrixViewMut::new(&mut self.out, k, n, n), &mut self.scratch);
            }
            (W4Op::DequantF16, W4Fn::Dequant(decode)) => {
                let of = (&self.operands.matrix(self.case, copy), 0..k, 0..n);
                w4_dequant_f16(decode, of, (&mut self.halves, n), &mut self.scratch)
                    .expect("results of the case");
            }
            (W4Op::Reduce(_), _) => {
                let _forced = TierGuard::tier(self.kernel.tier);
                w4_reduce(&self.operands.x, n, 0..n, &mut MatrixViewMut::new(&mut self.out, rows, n, n));
            }
            (W4Op::Zero(_), _) => {
                let _forced = TierGuard::tier(self.kernel.tier);
                w4_zero(&mut self.out);
            }
            (W4Op::DequantF32 | W4Op::DequantF16, _) => {}
        }
    }

    fn results(&self) -> Vec<f32> {
        match self.case.op {
            W4Op::DequantF16 => {
                self.halves.iter().map(|half| crate::float16::f16_value(half.to_bits())).collect()
            }
            _ => self.out.clone(),
        }
    }

    /// Checks that a part of the rows and columns gives the same bits.
    fn promises(&mut self) -> Result<(), String> {
        let (rows, W4Shape { k, n, .. }) = (self.case.rows, self.case.shape);
        if !matches!(self.case.op, W4Op::Gemm(_) | W4Op::Fused(_)) {
            return Ok(());
        }
        // A part must begin at a panel.
        let first = self.kernel.form.panel_rows(rows).min(rows);
        for (share, columns) in [(0..rows, 5.min(n)..n), (first..rows, 0..n), (0..first, n / 2..n)] {
            let mut part = vec![f32::NAN; share.len() * columns.len()];
            let mut y = MatrixViewMut::new(&mut part, share.len(), columns.len(), columns.len());
            self.share((share.clone(), 0..k, columns.clone()), &mut y, 0);
            for (i, row) in share.clone().enumerate() {
                let (part, whole) = (&part[i * columns.len()..], &self.out[row * n..][columns.clone()]);
                // The payload of a NaN is not specified.
                if !part
                    .iter()
                    .zip(whole)
                    .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
                {
                    return Err(format!("rows {share:?} and columns {columns:?} differ when computed alone"));
                }
            }
        }
        Ok(())
    }
}
