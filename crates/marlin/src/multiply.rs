//! The product: checks operands, plans, and divides the work among threads.

use crate::error::{Error, exactly};
use crate::input::{ConvertedRows, Input};
use crate::plan::{Kernel, Options, Plan, tile};
use crate::weight::Weight;
use crate::workers::Workers;
use half::f16;
use latent_kernels::{
    MatrixViewMut, W4Args, W4Entry, W4Fn, W4Form, W4Input, W4Kernel, W4Stripes, w4_reduce, w4_zero,
};
use latent_threads::Placement;
use latent_types::Tier;
use std::ops::Range;

/// Threads and memory for products.
pub struct Marlin {
    workers: Workers,
    converted: ConvertedRows,
    /// Partial sums `[slices, M, N]`.
    partials: Vec<f32>,
}

/// A part of the results: its place and its memory.
struct OutputTile<'y> {
    rows: Range<usize>,
    columns: Range<usize>,
    y: MatrixViewMut<'y>,
}

/// The number of columns of a share is a multiple of this.
// 48 columns are whole cache lines of words, and whole blocks of the GEMM.
const COLUMN_UNIT: usize = 48;

/// Columns of a share for kernels on integers.
// These kernels decode a pair of vectors at a time for only a few rows, so they read the words of a
// share again and again. 128 columns stay in the L2 cache.
const INTEGER_COLUMNS: usize = 128;

/// Rows of a share if there are too few columns for all workers.
// 64 rows are whole panels of inputs.
const SHARE_ROWS: usize = 64;

impl Marlin {
    /// Starts `threads` workers (at least one). The caller is one of them.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn new(threads: usize) -> Result<Marlin, Error> {
        Marlin::placed(&Placement::anywhere(threads.max(1)))
    }

    /// Starts one worker for each place of `placement`.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn placed(placement: &Placement) -> Result<Marlin, Error> {
        let workers = Workers::new(placement)?;
        Ok(Marlin { workers, converted: ConvertedRows::default(), partials: Vec::new() })
    }

    /// Computes y = x · W with the kernel for the shape: `m` rows of K inputs give `m` rows of N
    /// results. The bits of results do not depend on the number of threads.
    ///
    /// # Errors
    /// If the length of an operand does not match its shape.
    pub fn multiply(&mut self, w: &Weight<'_>, x: Input<'_>, m: usize, y: &mut [f32]) -> Result<(), Error> {
        self.multiply_with(&Options::default(), w, x, m, y)
    }

    /// Like [`multiply`](Self::multiply), with what `options` force.
    ///
    /// # Errors
    /// If the length of an operand does not match its shape, or no kernel does what is forced.
    pub fn multiply_with(
        &mut self,
        options: &Options,
        w: &Weight<'_>,
        x: Input<'_>,
        m: usize,
        y: &mut [f32],
    ) -> Result<(), Error> {
        let shape = w.shape();
        x.check(m, shape.k)?;
        exactly("the result", (m, shape.n), y.len())?;
        // Before the early return, so that forced options are checked for empty results too.
        let plan = Plan::new(options, shape, m, x.is_bf16())?;
        if y.is_empty() {
            return Ok(());
        }
        let input = self.converted.input((plan.chosen().form, &x), (m, shape.k), &mut self.workers)?;
        let y = MatrixViewMut::try_new(y, m, shape.n, shape.n)?;
        if plan.kernel == Kernel::Striped && plan.slices > 1 {
            return striped(&plan, w, &input, y, (&mut self.workers, &mut self.partials));
        }
        // Rows are divided only if columns alone do not give each worker several shares: every
        // share of the same columns decodes their weights again.
        let whole_columns = plan.kernel == Kernel::Fused || shape.n >= COLUMN_UNIT * 8 * self.workers.count();
        let columns = match plan.kernel {
            // One share per worker, so that it reads the words of all its columns in one pass.
            Kernel::Fused => shape.n.div_ceil(self.workers.count()).next_multiple_of(COLUMN_UNIT),
            _ if matches!(plan.chosen().form, W4Form::Int16 | W4Form::Int8) => INTEGER_COLUMNS,
            _ => COLUMN_UNIT,
        };
        let shares = cut(y, if whole_columns { m } else { SHARE_ROWS }, columns);
        self.workers.each(shares, false, |share, memory| {
            let OutputTile { rows, columns, mut y } = share;
            let args = W4Args { weight: w.matrix(), input: &input, rows, k: 0..shape.k, columns };
            (plan.function)(&args, &mut y, &mut memory.scratch);
        });
        Ok(())
    }

    /// Decodes a weight to f32 `[K, N]`. E2M1 and integers times an f16 or E8M0 scale are exact.
    ///
    /// # Errors
    /// If `out` does not have K · N elements.
    pub fn dequantize(&mut self, w: &Weight<'_>, out: &mut [f32]) -> Result<(), Error> {
        let shape = w.shape();
        exactly("the dequantized weight", (shape.k, shape.n), out.len())?;
        // `chunks_mut` refuses chunks of 0 elements, and N may be 0.
        let (kernel, len) = (dequant_kernel(), (8 * shape.n).max(1));
        // A row of words has the codes of eight inputs.
        let eights = out.chunks_mut(len).enumerate().collect();
        self.workers.each(eights, false, |(i, rows), memory| {
            let mut rows = MatrixViewMut::new(rows, 8, shape.n, shape.n);
            kernel((w.matrix(), 8 * i..8 * i + 8, 0..shape.n), &mut rows, &mut memory.scratch);
        });
        Ok(())
    }

    /// Decodes a weight to f16 `[K, N]`, rounded to nearest even. Values beyond 65504 become
    /// infinite.
    ///
    /// # Errors
    /// If `out` does not have K · N elements.
    pub fn dequantize_f16(&mut self, w: &Weight<'_>, out: &mut [f16]) -> Result<(), Error> {
        let shape = w.shape();
        exactly("the dequantized weight", (shape.k, shape.n), out.len())?;
        // As in `dequantize`, N may be 0.
        let (kernel, len) = (dequant_kernel(), (8 * shape.n).max(1));
        let eights = out.chunks_mut(len).enumerate().collect();
        self.workers.each(eights, false, |(i, rows), memory| {
            let of = (w.matrix(), 8 * i..8 * i + 8, 0..shape.n);
            // The rows have the right shape, so this cannot fail.
            let _ = latent_kernels::w4_dequant_f16(kernel, of, (rows, shape.n), &mut memory.scratch);
        });
        Ok(())
    }
}

/// The decoding kernel of the highest tier that this machine has.
fn dequant_kernel() -> latent_kernels::W4DequantFn {
    let best = latent_kernels::features().tier();
    let of = |kernel: &W4Kernel| match kernel.function {
        W4Fn::Dequant(function) if kernel.entry == W4Entry::Dequant && kernel.tier <= best => {
            Some((kernel.tier, function))
        }
        _ => None,
    };
    let found = latent_kernels::w4_table().iter().filter_map(of).max_by_key(|(tier, _): &(Tier, _)| *tier);
    found.map(|(_, function)| function).expect("the portable kernel is always there")
}

/// Cuts results into shares of at most `height` rows and `width` columns.
fn cut(mut y: MatrixViewMut<'_>, height: usize, width: usize) -> Vec<OutputTile<'_>> {
    // With shares of 0 rows or columns, the loops would not end.
    let (height, width) = (height.max(1), width.max(1));
    let mut shares = Vec::new();
    let mut row = 0;
    while y.rows() > 0 {
        let at = height.min(y.rows());
        let (mut top, below) = y.split_rows(at);
        let mut column = 0;
        while top.cols() > 0 {
            let at = width.min(top.cols());
            let (left, right) = top.split_columns(at);
            let (rows, columns) = (row..row + left.rows(), column..column + left.cols());
            shares.push(OutputTile { rows, columns, y: left });
            column += at;
            top = right;
        }
        row += at;
        y = below;
    }
    shares
}

/// Computes a partial sum for each tile and slice of K, and then adds them up.
fn striped(
    plan: &Plan,
    w: &Weight<'_>,
    input: &W4Input<'_>,
    y: MatrixViewMut<'_>,
    (workers, partials): (&mut Workers, &mut Vec<f32>),
) -> Result<(), Error> {
    let shape = w.shape();
    let (m, n) = (y.rows(), y.cols());
    // The caller may force any number of slices up to K / 8, so the sums may exceed memory.
    let overflow = || Error::Overflow { what: "the partial sums", rows: plan.slices, cols: m * n };
    let count = plan.slices.checked_mul(m * n).ok_or_else(overflow)?;
    partials.try_reserve(count.saturating_sub(partials.len())).map_err(|_| overflow())?;
    partials.resize(count, 0.0);
    let tile = tile(m);
    let stripes = W4Stripes { rows: m, columns: n, k: shape.k, tile, slices: plan.slices };
    // An empty slice has no unit that would write its sums. Zeros make it count as nothing, instead
    // of the sums of an earlier product.
    let blocks = partials.chunks_mut((m * n).div_ceil(workers.count()).max(4096)).collect();
    workers.each(blocks, plan.slices * m * n < 4096, |block, _| w4_zero(block));
    // The tiles of each slice, in the order in which `stripes` counts them: below, the next tile of
    // a unit's slice is the unit's.
    let mut slices = Vec::new();
    for slice in partials.chunks_exact_mut(m * n) {
        slices.push(cut(MatrixViewMut::try_new(slice, m, n, n)?, tile.0, tile.1).into_iter());
    }
    let mut units = Vec::with_capacity(stripes.units());
    for index in 0..stripes.units() {
        let unit = stripes.unit(index);
        if let (false, Some(share)) = (unit.k.is_empty(), slices[unit.slice].next()) {
            units.push((unit, share.y));
        }
    }
    workers.each(units, false, |(unit, mut y), memory| {
        let args = W4Args { weight: w.matrix(), input, rows: unit.rows, k: unit.k, columns: unit.columns };
        (plan.function)(&args, &mut y, &mut memory.scratch);
    });
    // Shares of whole cache lines, so that two workers seldom write to the same one.
    let columns = n.div_ceil(workers.count()).next_multiple_of(16);
    let (partials, shares) = (&partials[..], cut(y, m, columns));
    workers.each(shares, m * n < 4096, |share, _| {
        let OutputTile { columns, mut y, .. } = share;
        // The slices are added in order, so that the bits of results do not depend on the number of
        // threads.
        w4_reduce(partials, n, columns, &mut y);
    });
    Ok(())
}
