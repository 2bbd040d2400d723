//! Attention to latents, as an operation of a plan.

use super::latent_attention::{LatentAttention, LatentBuffers};
use crate::compile::{Compiler, ScratchLimits};
use crate::error::GpuError;
use crate::memory::SCRATCHES;
use crate::run::{GpuOperation, MultiPass, StageRun};
use crate::step_data::{StepData, TASK_WORDS, TaskRange};
use crate::values::{ShaderOperand, ValueBuffer, internal};
use latent_backend::{BackendError, Batch};
use latent_graph::ir::{AttentionPath, KvLayerKind, Node};

/// Maximum rows of a step whose KV ranges are cut into splits.
// More rows keep the device busy without splits.
const SPLIT_ROWS: usize = 16;

/// Attention of all heads to one cached row per token. The row's first elements are also the value.
struct AttendLatent {
    shaders: LatentAttention,
    q: ShaderOperand,
    y: ShaderOperand,
    kv_layer: usize,
    /// The tokens that rows attend to, if attention is sparse.
    selected: Option<ShaderOperand>,
    /// Maximum bytes of partial results.
    scratch: u64,
    /// Maximum arithmetic operations per portion of a step.
    portion: f64,
}

/// Tasks that are submitted together.
struct LatentPass {
    tasks: TaskRange,
    list: TaskRange,
    /// Whether these are the last tasks of the list.
    is_last: bool,
}

impl MultiPass for AttendLatent {
    type ExpansionPass<'s> = LatentPass;

    /// The tasks on a path, cut into passes that fit a portion of a step.
    fn passes<'s>(
        &'s self,
        step: &'s StepData,
        _rows: (&Batch, usize),
        path: AttentionPath,
    ) -> impl Iterator<Item = LatentPass> {
        step.shared(path).flat_map(|list| {
            let end = list.at + list.count * TASK_WORDS;
            let pieces = list.pieces(self.portion, self.shaders.work * list.kv_len as f64);
            pieces.map(move |tasks| LatentPass {
                tasks,
                list,
                is_last: tasks.at + tasks.count * TASK_WORDS == end,
            })
        })
    }

    /// Records the calls of some tasks.
    fn record_pass(
        &self,
        run: &mut StageRun<'_>,
        path: AttentionPath,
        pass: LatentPass,
    ) -> Result<(), GpuError> {
        let buffers = LatentBuffers {
            queries: run.queries(&self.q, &self.y),
            kv: run.kv.layer(run.first_kv_layer + self.kv_layer).into(),
            partials: (&run.memory.scratch[0]).into(),
            selected: self.selected.map(|of| (run.bind(&of), [of.offset, of.row_stride])),
        };
        let few = run.rows <= SPLIT_ROWS;
        // Splits depend on the whole list, so the bits of the results do not depend on the passes.
        let splits = few.then(|| self.shaders.splits(run.rows, pass.list, self.scratch)).flatten();
        self.shaders.attend(run.commands, &buffers, pass.tasks, splits);
        // Once per list: combining reads the partial results of all its tasks.
        if let Some(splits) = splits.filter(|_| pass.is_last) {
            for rows in run.ranges(path) {
                self.shaders.combine(run.commands, &buffers, &rows, splits);
            }
        }
        Ok(())
    }
}

/// Bytes of scratch buffers: partial results.
pub(super) fn scratch(sizes: &ScratchLimits<'_>) -> [u64; SCRATCHES] {
    [sizes.scratch.min(sizes.max_buffer), 0, 0, 0]
}

pub(super) fn latent(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let (kv_layer, rows) = compiler.kv_layer(node)?;
    if rows.kind != KvLayerKind::Latent {
        return internal("attention to latents over expanded rows".into());
    }
    let selected = compiler.input_at(node, "selected")?;
    let a = &compiler.config.attention;
    let max_attended = selected.and(a.indexer).map(|indexer| indexer.topk);
    let shaders = LatentAttention::new(compiler.device, a, rows, compiler.cache_type, max_attended)?;
    let (q, y) = (compiler.input(node, 0)?, compiler.output(node, 0)?);
    // `combine` writes results while it reads partial results there.
    debug_assert_ne!(y.home, ValueBuffer::Scratch(0));
    let [scratch, ..] = scratch(&compiler.sizes());
    Ok(Box::new(AttendLatent { shaders, q, y, kv_layer, selected, scratch, portion: compiler.portion }))
}
