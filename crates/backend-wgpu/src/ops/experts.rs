//! The experts of each row: gate and up, activation, down, and the sum of their results.

use super::elementwise::Elementwise;
use crate::commands::{Binding, grid};
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::matmul::rows::{Matrix, matmul_by_id, matmul_sorted, sort_by_expert};
use crate::matmul::sort::SortedItems;
use crate::matmul::weight::Weight;
use crate::pipeline::Pipeline;
use crate::run::{Operation, Run};
use crate::shader::Shader;
use crate::values::{Home, Operand, count, internal};
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node};
use std::sync::Arc;

/// Pairs that are multiplied one by one: of more, an expert's weights are decoded for several at once.
const FEW_PAIRS: usize = 64;

/// Rows whose ids take a multiple of 256 bytes.
const ID_ROWS: u64 = 64;

/// Gate and up, as the model has them.
enum GateUp {
    /// Two weights.
    Apart(Arc<Weight>, Arc<Weight>),
    /// One, whose outputs are those of the gate and then those of up.
    Fused(Arc<Weight>),
}

struct Experts {
    gate_up: GateUp,
    activation: Elementwise,
    down: Arc<Weight>,
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

/// Rows with one expert each, next to one another in scratch memory.
fn pairs(scratch: usize, used: usize, width: u32, stride: u32) -> Operand {
    Operand {
        home: Home::Scratch(scratch),
        offset: 0,
        row_stride: used as u32 * stride,
        head_stride: stride,
        heads: used as u32,
        width,
    }
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
        weight: &Weight,
        (x, share): (&Matrix, usize),
        y: &Matrix,
    ) -> Result<(), GpuError> {
        match &self.sorted {
            Some(sorted) => matmul_sorted(run.commands, weight, (x, share), sorted, y),
            None => matmul_by_id(run.commands, weight, (x, share), (self.ids.clone(), self.count), y),
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
        let (one, two, three) = (in_scratch(0, ffn), in_scratch(1, ffn), in_scratch(2, hidden));
        let activated = match &self.gate_up {
            GateUp::Apart(gate, up) => {
                chosen.multiply(run, gate, (&x, used), &one)?;
                chosen.multiply(run, up, (&x, used), &two)?;
                one
            }
            GateUp::Fused(both) => {
                let both_of = Matrix { stride: 2 * ffn as usize, ..one };
                chosen.multiply(run, both, (&x, used), &both_of)?;
                both_of
            }
        };
        self.activation.call(run, 0, rows)?;
        chosen.multiply(run, &self.down, (&activated, 1), &three)?;
        let sizes = [first as u32, rows as u32, hidden, used as u32];
        let places = [self.weights.offset, self.y.offset, self.y.row_stride];
        let bindings = [Binding::from(&run.memory.scratch[2]), run.bind(&self.weights), run.bind(&self.y)];
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
    let fused = find("expert_gate_up")?;
    let gate_up = match (fused, find("expert_gate")?, find("expert_up")?) {
        (Some(both), ..) => GateUp::Fused(both),
        (None, Some(gate), Some(up)) => GateUp::Apart(gate, up),
        _ => return internal("experts without gate and up".into()),
    };
    let Some(down) = find("expert_down")? else { return internal("no weight expert_down".into()) };
    // in place: of two weights in two buffers, of one in halves of its results
    let activation = match gate_up {
        GateUp::Apart(..) => {
            Elementwise::silu_mul(compiler, pairs(0, used, ffn, ffn), pairs(1, used, ffn, ffn))?
        }
        GateUp::Fused(_) => {
            let gate = pairs(0, used, ffn, 2 * ffn);
            Elementwise::silu_mul(compiler, gate, Operand { offset: ffn, ..gate })?
        }
    };
    let halves = if matches!(gate_up, GateUp::Fused(_)) { 2 } else { 1 };
    let row = 4 * used as u64 * u64::from(y.row_width().max(halves * ffn));
    // ids are bound from multiples of 256 bytes on
    let rows_at_once = (compiler.scratch / row).min(compiler.plan.max_rows as u64).next_multiple_of(ID_ROWS);
    compiler.needs.scratch([rows_at_once * row, rows_at_once * row, rows_at_once * row, 0]);
    let combine = Shader::new("combine_experts", include_str!("combine_experts.wgsl"));
    let combine = compiler.device.pipeline(&combine)?;
    Ok(Box::new(Experts {
        gate_up,
        activation,
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
