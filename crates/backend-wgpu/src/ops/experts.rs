//! The experts of each row: gate and up, activation, down, and the sum of their results.

use crate::commands::{Binding, grid};
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::matmul::product::{Keep, Matrices, Part, multiply_into, multiply_sorted_into};
use crate::matmul::rows::{Matrix, pairs, sort_by_expert};
use crate::matmul::sort::SortedItems;
use crate::matmul::weight::Weight;
use crate::pipeline::Pipeline;
use crate::run::{Operation, Run};
use crate::shader::Shader;
use crate::values::{Operand, count, internal};
use latent_backend::{Arithmetic, BackendError};
use latent_graph::ir::{AttentionPath, Node};
use std::ops::Range;
use std::sync::Arc;

/// Pairs that are multiplied one by one: of more, an expert's weights are decoded for several at once.
const FEW_PAIRS: usize = 64;

/// Rows whose ids take a multiple of 256 bytes.
const ID_ROWS: u64 = 64;

/// Rows of each of a weight's matrices.
type Rows = (Arc<Weight>, Range<usize>);

struct Experts {
    /// Of two weights, or of one whose outputs are those of the gate and then those of up.
    gate: Rows,
    up: Rows,
    down: Rows,
    combine: Arc<Pipeline>,
    x: Operand,
    ids: Operand,
    weights: Operand,
    y: Operand,
    /// Experts of the layer, and of a row.
    experts: usize,
    used: usize,
    /// Elements of an expert's hidden layer.
    ffn: u32,
    /// Rows whose results scratch memory holds.
    rows_at_once: usize,
}

/// A row and one of its experts each.
struct Pairs {
    ids: Binding,
    count: usize,
    /// Where there are enough of them that experts are shared by some.
    sorted: Option<SortedItems>,
}

impl Pairs {
    /// Multiplies; `share` pairs have one row of `x`.
    fn multiply(
        &self,
        run: &mut Run<'_>,
        (weight, rows): &Rows,
        x: (&Matrix, usize),
        (y, keep): (&Matrix, Keep),
    ) -> Result<(), GpuError> {
        let items = pairs(run.commands, x, self.count, y)?;
        let (part, keep) = (Part { rows: rows.clone(), transposed: false }, (keep, 0.0));
        match &self.sorted {
            Some(sorted) => multiply_sorted_into(run.commands, (weight, &part), &items, sorted, keep),
            None => {
                let ids = Matrices::ByIds { ids: self.ids.clone(), offset: 0 };
                multiply_into(run.commands, (weight, &part), &items, &ids, keep)
            }
        }
    }
}

impl Operation for Experts {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for range in run.ranges(path) {
            for first in range.clone().step_by(self.rows_at_once) {
                self.block(run, first, (range.end - first).min(self.rows_at_once))?;
            }
        }
        Ok(())
    }

    fn arithmetic(&self, rows: usize) -> Arithmetic {
        let pairs = rows * self.used;
        // one by one, or as many together as tiles have
        self.gate.0.arithmetic(if pairs > FEW_PAIRS { pairs } else { 1 })
    }
}

impl Experts {
    fn block(&self, run: &mut Run<'_>, first: usize, rows: usize) -> Result<(), GpuError> {
        let (used, ffn, hidden) = (self.used, self.ffn, self.y.row_width());
        let count = rows * used;
        let ids = 4 * (u64::from(self.ids.offset) + (first * used) as u64);
        let ids = Binding::part(run.memory.of(self.ids.home), ids..ids + 4 * count as u64);
        let sorted = (count > FEW_PAIRS)
            .then(|| sort_by_expert(run.commands, (ids.clone(), count), self.experts))
            .transpose()?;
        let chosen = Pairs { ids, count, sorted };
        let x = run.matrix(&self.x, first);
        let in_scratch = |scratch, width: u32| Matrix {
            binding: Binding::from(&run.memory.scratch[scratch]),
            first: 0,
            stride: width as usize,
        };
        let (activated, results) = (in_scratch(0, ffn), in_scratch(1, hidden));
        chosen.multiply(run, &self.gate, (&x, used), (&activated, Keep::Store))?;
        chosen.multiply(run, &self.up, (&x, used), (&activated, Keep::SiluMul))?;
        chosen.multiply(run, &self.down, (&activated, 1), (&results, Keep::Store))?;
        let sizes = [first as u32, rows as u32, hidden, used as u32];
        let places = [self.weights.offset, self.y.offset, self.y.row_stride];
        let bindings = [Binding::from(&run.memory.scratch[1]), run.bind(&self.weights), run.bind(&self.y)];
        let params = [&sizes[..], &places].concat();
        run.commands.call(&self.combine, bindings, &params, grid(rows * hidden as usize, 256));
        Ok(())
    }
}

pub(super) fn compile(compiler: &mut Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
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
    let row = 4 * used as u64 * u64::from(y.row_width().max(ffn));
    // ids are bound from multiples of 256 bytes on
    let rows_at_once = (compiler.scratch / row).min(compiler.plan.max_rows as u64).next_multiple_of(ID_ROWS);
    compiler.needs.scratch([rows_at_once * row, rows_at_once * row, 0, 0]);
    let combine = Shader::new("combine_experts", include_str!("combine_experts.wgsl"));
    let combine = compiler.device.pipeline(&combine)?;
    Ok(Box::new(Experts {
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
        rows_at_once: rows_at_once as usize,
    }))
}
