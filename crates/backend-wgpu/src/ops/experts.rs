//! The experts of each row: gate and up, activation, down, and the sum of their results.

use crate::commands::{ShaderBinding, grid};
use crate::compile::{Compiler, ScratchLimits};
use crate::error::GpuError;
use crate::matmul::product::{ProductEpilogue, SlotMatrix, WeightSlice, multiply_into, multiply_sorted_into};
use crate::matmul::products::ProductContext;
use crate::matmul::rows::{BufferRows, pairs, sort_by_expert};
use crate::matmul::sort::{MAX_PAIRS, SortMemory, SortedItems};
use crate::matmul::weight::DeviceWeight;
use crate::memory::SCRATCHES;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, MultiPass, StageRun, ranges};
use crate::shader::Shader;
use crate::step_data::StepData;
use crate::values::{ShaderOperand, count, internal};
use latent_backend::{BackendError, Batch};
use latent_graph::config::MoeShape;
use latent_graph::ir::{AttentionPath, Node};
use latent_types::Arithmetic;
use std::ops::Range;
use std::sync::Arc;

/// Maximum (row, expert) pairs that are multiplied one by one.
// More pairs are sorted by expert, so that an expert's weights are decoded once for several pairs.
const FEW_PAIRS: usize = 64;

/// Scratch memory of experts as a multiple of that of other operations.
// Every pass reads the weights of nearly all experts again. With 256 MiB, a step of 512 rows of
// DeepSeek-V3 is one pass instead of three.
const SCRATCH_FACTOR: u64 = 8;

/// A weight and a range of rows of each of its matrices.
type MatrixRowRange = (Arc<DeviceWeight>, Range<usize>);

struct ExpertFfn {
    /// Gate and up are two weights, or one weight whose rows are those of the gate followed by
    /// those of up.
    gate: MatrixRowRange,
    up: MatrixRowRange,
    down: MatrixRowRange,
    combine: Arc<ShaderPipeline>,
    x: ShaderOperand,
    ids: ShaderOperand,
    weights: ShaderOperand,
    y: ShaderOperand,
    /// Number of experts of the layer.
    experts: usize,
    /// Number of experts per row.
    used: usize,
    /// Elements of an expert's hidden layer.
    ffn: u32,
    /// Rows per pass: their results fit scratch memory.
    rows_at_once: usize,
}

/// The (row, expert) pairs of a pass.
struct ExpertPairs {
    ids: ShaderBinding,
    /// Index of the first pair's id.
    offset: u32,
    count: usize,
    /// Set if there are more than [`FEW_PAIRS`].
    sorted: Option<SortedItems>,
}

impl ExpertPairs {
    /// Multiplies the pairs by the experts' matrices. `x` comes with the number of pairs per row.
    fn multiply(
        &self,
        run: &mut StageRun<'_>,
        (weight, rows): &MatrixRowRange,
        x: (&BufferRows, usize),
        (y, keep): (&BufferRows, ProductEpilogue),
    ) -> Result<(), GpuError> {
        let items = pairs(run.commands, x, self.count, y)?;
        let (part, keep) = (WeightSlice { rows: rows.clone(), transposed: false }, (keep, 0.0));
        match &self.sorted {
            Some(sorted) => multiply_sorted_into(run.commands, (weight, &part), &items, sorted, keep),
            None => {
                let ids = SlotMatrix::ByIds { ids: self.ids.clone(), offset: self.offset };
                multiply_into(run.commands, (weight, &part), &items, &ids, keep)
            }
        }
    }
}

impl MultiPass for ExpertFfn {
    type ExpansionPass<'s> = Range<usize>;

    /// The rows on a path, cut into ranges that fit scratch memory.
    fn passes<'s>(
        &'s self,
        _step: &'s StepData,
        (batch, rows): (&Batch, usize),
        path: AttentionPath,
    ) -> impl Iterator<Item = Range<usize>> {
        ranges(batch, rows, path).into_iter().flat_map(move |Range { start, end }| {
            let firsts = (start..end).step_by(self.rows_at_once);
            firsts.map(move |first| first..end.min(first + self.rows_at_once))
        })
    }

    fn record_pass(
        &self,
        run: &mut StageRun<'_>,
        _path: AttentionPath,
        pass: Range<usize>,
    ) -> Result<(), GpuError> {
        let (first, rows) = (pass.start, pass.len());
        let (used, ffn, hidden) = (self.used, self.ffn, self.y.row_width());
        let count = rows * used;
        let (ids, offset) = (run.bind(&self.ids), self.ids.offset + (first * used) as u32);
        let sorted = (count > FEW_PAIRS)
            .then(|| sort_by_expert(run.commands, &run.memory.sorted, (&ids, offset, count), self.experts))
            .transpose()?;
        let chosen = ExpertPairs { ids, offset, count, sorted };
        let x = run.matrix(&self.x, first);
        let in_scratch = |scratch, width: u32| BufferRows {
            binding: ShaderBinding::from(&run.memory.scratch[scratch]),
            first: 0,
            stride: width as usize,
        };
        // `up` multiplies its sums by the activated gate in place, so that two buffers suffice for
        // gate, up and down.
        let (activated, results) = (in_scratch(0, ffn), in_scratch(1, hidden));
        chosen.multiply(run, &self.gate, (&x, used), (&activated, ProductEpilogue::Store))?;
        chosen.multiply(run, &self.up, (&x, used), (&activated, ProductEpilogue::SiluMul))?;
        chosen.multiply(run, &self.down, (&activated, 1), (&results, ProductEpilogue::Store))?;
        let sizes = [first as u32, rows as u32, hidden, used as u32];
        let places = [self.weights.offset, self.y.offset, self.y.row_stride];
        let bindings =
            [ShaderBinding::from(&run.memory.scratch[1]), run.bind(&self.weights), run.bind(&self.y)];
        let params = [&sizes[..], &places].concat();
        run.commands.call(&self.combine, bindings, &params, grid(rows * hidden as usize, 256));
        Ok(())
    }

    fn arithmetic(&self, rows: usize) -> Arithmetic {
        let pairs = rows * self.used;
        // Few pairs use the kernel of single rows.
        self.gate.0.arithmetic(if pairs > FEW_PAIRS { pairs } else { 1 })
    }
}

/// The shader that adds the weighted results of a row's experts.
pub(super) fn shader() -> Shader {
    Shader::new("combine_experts", include_str!("combine_experts.wgsl"))
}

/// Rows per pass: their results fit scratch memory.
fn rows_at_once(sizes: &ScratchLimits<'_>, moe: &MoeShape) -> usize {
    let widest = moe.intermediate.max(sizes.config.hidden_size);
    let scratch = (SCRATCH_FACTOR * sizes.scratch).min(sizes.max_buffer);
    rows_per_pass(sizes.rows(), (moe.num_experts_per_tok, widest), scratch)
}

/// Rows per pass, for the smallest number of passes with `bytes` bytes of scratch memory. Each row
/// has `used` results of `width` elements.
fn rows_per_pass(rows: usize, (used, width): (usize, usize), bytes: u64) -> usize {
    let row = 4 * (used.max(1) * width.max(1)) as u64;
    // The tiles of the sorted pairs must fit one dimension of a call.
    let fit = usize::try_from(bytes / row).unwrap_or(usize::MAX).min(MAX_PAIRS / used.max(1));
    // Passes of equal size: each reads the weights of nearly all experts, so a small last pass
    // would cost nearly as much as a large one.
    rows.div_ceil(rows.div_ceil(fit.max(1)))
}

/// Bytes of scratch buffers, of the sort's buffers, and of quantized inputs.
pub(crate) fn needs(
    sizes: &ScratchLimits<'_>,
    products: &ProductContext,
    node: &Node,
) -> ([u64; SCRATCHES], [u64; 2], u64) {
    let Some(moe) = &sizes.config.moe else { return Default::default() };
    let (rows, used, hidden) = (rows_at_once(sizes, moe), moe.num_experts_per_tok, sizes.config.hidden_size);
    let (pairs, bytes) = (rows * used, |width: usize| 4 * (rows * used * width) as u64);
    let quantized = node.weights.iter().map(|(slot, id)| {
        let ty = sizes.plan.ir.weight(*id).ty;
        match slot.as_str() {
            "expert_down" => products.quantized_bytes((ty, moe.intermediate), (pairs, FEW_PAIRS), 1),
            _ => products.quantized_bytes((ty, hidden), (rows, FEW_PAIRS), 1),
        }
    });
    let scratch = [bytes(moe.intermediate), bytes(hidden), 0, 0];
    (scratch, SortMemory::bytes(pairs, moe.experts), quantized.max().unwrap_or(0))
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let Some(moe) = compiler.config.moe else { return internal("experts without a router".into()) };
    let (used, ffn) = (moe.num_experts_per_tok, count(moe.intermediate)?);
    let x = compiler.input(node, 0)?;
    let x = compiler.cut(x, x.row_width() as usize)?;
    let y = compiler.output(node, 0)?;
    let y = compiler.cut(y, y.row_width() as usize)?;
    let (ids, weights) = (compiler.input(node, 1)?, compiler.input(node, 2)?);
    let find = |slot: &str| node.weight(slot).map(|id| compiler.product_weight(id)).transpose();
    let inner = moe.intermediate;
    let (gate, up) = match (find("expert_gate_up")?, find("expert_gate")?, find("expert_up")?) {
        (Some(both), ..) => ((Arc::clone(&both), 0..inner), (both, inner..2 * inner)),
        (None, Some(gate), Some(up)) => ((gate, 0..inner), (up, 0..inner)),
        _ => return internal("experts without gate and up".into()),
    };
    let Some(down) = find("expert_down")? else { return internal("no weight expert_down".into()) };
    let down = (down, 0..y.row_width() as usize);
    let rows_at_once = rows_at_once(&compiler.sizes(), &moe);
    let combine = compiler.device.pipeline(&shader())?;
    Ok(Box::new(ExpertFfn {
        gate,
        up,
        down,
        combine,
        x,
        ids,
        weights,
        y,
        experts: moe.experts,
        used,
        ffn,
        rows_at_once,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SCRATCH;

    #[test]
    fn experts_take_few_passes_and_a_pass_has_at_least_one_row() {
        let bytes = SCRATCH_FACTOR * SCRATCH;
        // DeepSeek-V3: a step of 512 rows takes one pass, and one of 4096 takes four.
        let v3 = (8, 7168);
        assert_eq!([16, 512, 4096].map(|rows| rows_per_pass(rows, v3, bytes)), [16, 512, 1024]);
        // Bindings of 128 MiB.
        assert_eq!([512, 4096].map(|rows| rows_per_pass(rows, v3, 128 << 20)), [512, 512]);
        // A single row exceeds the scratch memory; and the widest row that a file may claim.
        assert_eq!(rows_per_pass(512, (9, 1 << 20), 32 << 20), 1);
        assert_eq!(rows_per_pass(1, (1024, 1 << 20), 1), 1);
        // 2 GiB of tiny rows would need more tiles than a call has workgroups.
        let rows = rows_per_pass(1 << 20, (64, 8), 2 << 30);
        assert!(rows * 64 / 16 + 1024 <= 65535, "{rows}");
    }
}
