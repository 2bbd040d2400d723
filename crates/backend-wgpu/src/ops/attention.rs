//! Attention to latents, which serve all heads.

use crate::cache::{reading, with_rows, with_slots};
use crate::commands::{Binding, grid};
use crate::compile::{Compiler, Sizes};
use crate::error::GpuError;
use crate::memory::SCRATCHES;
use crate::pipeline::Pipeline;
use crate::run::{Operation, Run};
use crate::shader::Shader;
use crate::step_data::{QUERIES, StepData, TASK_WORDS, Tasks};
use crate::values::{Home, Operand, internal};
use latent_backend::{BackendError, Batch};
use latent_graph::config::AttentionShape;
use latent_graph::ir::{AttentionPath, KvLayer, KvLayerKind, Node};
use latent_types::CacheType;
use std::sync::Arc;

const TEXT: &str = include_str!("attend.wgsl");

const LATENTS: &str = "
@group(0) @binding(4) var<storage, read> cache: array<u32>;
fn latent(blocks: u32, position: u32, d: u32) -> f32 {
    return cached(slot_of(blocks, position), d);
}
";
const WHOLE: &str = "
fn keep(row: u32, head: u32, split: u32, d: u32, sum: f32, total: f32) {
    y[params.y + row * params.y_row + head * params.y_head + d] = sum / total;
}
fn keep_state(row: u32, head: u32, split: u32, most: f32, total: f32) {}
";
const PARTIAL: &str = "
fn partial(row: u32, head: u32, split: u32) -> u32 {
    return ((row * params.heads + head) * params.splits + split) * (VALUE_WIDTH + 2u);
}
fn keep(row: u32, head: u32, split: u32, d: u32, sum: f32, total: f32) {
    y[partial(row, head, split) + d] = sum;
}
fn keep_state(row: u32, head: u32, split: u32, most: f32, total: f32) {
    y[partial(row, head, split) + VALUE_WIDTH] = most;
    y[partial(row, head, split) + VALUE_WIDTH + 1u] = total;
}
";

/// Rows of a step whose KV ranges are cut into splits, at most: more keep the device busy by themselves.
const SPLIT_ROWS: usize = 16;
/// Cached rows of a split, at least.
const LEAST_SPLIT: usize = 64;
/// Workgroups that keep a device busy.
const BUSY: usize = 256;

/// `results`: [`WHOLE`], or [`PARTIAL`] of splits.
fn shader(
    a: &AttentionShape,
    rows: &KvLayer,
    cache: CacheType,
    results: &'static str,
) -> Result<Shader, BackendError> {
    let shader = Shader::new("attend", TEXT)
        .after(LATENTS)
        .after(reading(cache))
        .after(results)
        .count("QUERIES", QUERIES)
        .count("TASK_WORDS", TASK_WORDS as usize)
        .count("KEY_WIDTH", a.kv_lora_rank + a.rope)
        .count("VALUE_WIDTH", a.kv_lora_rank)
        .count("SHARING", a.heads);
    with_rows(with_slots(shader), rows, cache)
}

fn combine(a: &AttentionShape) -> Shader {
    Shader::new("combine_splits", include_str!("combine_splits.wgsl")).count("VALUE_WIDTH", a.kv_lora_rank)
}

/// Every text.
#[cfg(test)]
pub(super) fn shaders(a: &AttentionShape) -> Vec<Shader> {
    let rows = KvLayer { kind: KvLayerKind::Latent, layer: 0, width: a.latent_width(), rope: a.rope };
    let of = |cache| [WHOLE, PARTIAL].map(|results| shader(a, &rows, cache, results).unwrap());
    CacheType::ALL.into_iter().flat_map(of).chain([combine(a)]).collect()
}

/// Attention of all heads to one row per token, whose first elements are the value too.
struct AttendLatent {
    whole: Arc<Pipeline>,
    partial: Arc<Pipeline>,
    combine: Arc<Pipeline>,
    q: Operand,
    y: Operand,
    kv_layer: usize,
    heads: usize,
    /// Floats of a partial result.
    partial_width: usize,
    /// Bytes that partial results may take.
    scratch: u64,
    /// Operations of a portion of a step.
    portion: f64,
    /// Those of a task for each row that it reads.
    work: f64,
}

/// Tasks that the device gets together.
struct Go {
    tasks: Tasks,
    /// All that stand in their list.
    list: Tasks,
    /// Whether they are the last of it.
    is_last: bool,
}

impl Operation for AttendLatent {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let step = run.step;
        self.goes(step, path).for_each(|go| self.go(run, path, &go));
        Ok(())
    }

    fn parts(&self, step: &StepData, _rows: (&Batch, usize), path: AttentionPath) -> usize {
        self.goes(step, path).count().max(1)
    }

    fn record_part(&self, run: &mut Run<'_>, path: AttentionPath, part: usize) -> Result<(), GpuError> {
        let step = run.step;
        self.goes(step, path).nth(part).iter().for_each(|go| self.go(run, path, go));
        Ok(())
    }
}

impl AttendLatent {
    /// The tasks on a path, as many at a time as a portion of a step has room for.
    fn goes<'s>(&self, step: &'s StepData, path: AttentionPath) -> impl Iterator<Item = Go> + use<'s> {
        let (portion, work) = (self.portion, self.work);
        step.shared(path).flat_map(move |list| {
            let end = list.at + list.count * TASK_WORDS;
            let pieces = list.pieces(portion, work * list.kv_len as f64);
            pieces.map(move |tasks| Go { tasks, list, is_last: tasks.at + tasks.count * TASK_WORDS == end })
        })
    }

    /// Adds the calls of some tasks. How their KV ranges are cut depends on the whole list, so that bits do not depend on what goes together.
    fn go(&self, run: &mut Run<'_>, path: AttentionPath, go: &Go) {
        let (kv_len, splits) = (go.list.kv_len, self.splits(run.rows, go.list));
        if splits < 2 {
            let y = (run.bind(&self.y), self.y.address());
            self.attend(run, &self.whole, go.tasks, y, (u32::MAX, 1));
            return;
        }
        let split_rows = kv_len.div_ceil(splits).next_multiple_of(LEAST_SPLIT);
        let splits = kv_len.div_ceil(split_rows) as u32;
        let partials = (Binding::from(&run.memory.scratch[0]), [0; 3]);
        self.attend(run, &self.partial, go.tasks, partials, (split_rows as u32, splits));
        if go.is_last {
            self.combine(run, path, splits);
        }
    }

    /// Adds a call whose results, of `splits` splits each, are in a buffer.
    fn attend(
        &self,
        run: &mut Run<'_>,
        pipeline: &Arc<Pipeline>,
        tasks: Tasks,
        (y, address): (Binding, [u32; 3]),
        (split_rows, splits): (u32, u32),
    ) {
        let kv = run.kv.layer(run.first_kv_layer + self.kv_layer);
        let mut params = vec![tasks.at, run.step.scales, split_rows, splits];
        params.extend(self.q.address());
        params.extend(address);
        params.push(self.heads as u32);
        let bindings = [run.step_buffer.into(), run.bind(&self.q), y, kv.into()];
        run.commands.call(pipeline, bindings, &params, [tasks.count, splits, 1]);
    }

    /// Into how many splits the KV ranges of a step are cut.
    fn splits(&self, rows: usize, tasks: Tasks) -> usize {
        if rows > SPLIT_ROWS {
            return 1;
        }
        let wanted = BUSY.div_ceil(tasks.count as usize).min(tasks.kv_len.div_ceil(LEAST_SPLIT));
        wanted.min(self.scratch as usize / (4 * rows * self.heads * self.partial_width))
    }

    fn combine(&self, run: &mut Run<'_>, path: AttentionPath, splits: u32) {
        for rows in run.ranges(path) {
            let mut params = vec![rows.start as u32, rows.len() as u32, self.heads as u32, splits];
            params.extend(self.y.address());
            let bindings = [Binding::from(&run.memory.scratch[0]), run.bind(&self.y)];
            run.commands.call(&self.combine, bindings, &params, grid(rows.len() * self.heads, 1));
        }
    }
}

/// Bytes of scratch buffers: partial results.
pub(super) fn scratch(sizes: &Sizes<'_>) -> [u64; SCRATCHES] {
    [sizes.scratch.min(sizes.most), 0, 0, 0]
}

pub(super) fn latent(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
    let (kv_layer, rows) = compiler.kv_layer(node)?;
    if rows.kind != KvLayerKind::Latent {
        return internal("attention to latents over expanded rows".into());
    }
    let a = compiler.config.attention;
    let (q, y) = (compiler.input(node, 0)?, compiler.output(node, 0)?);
    let text = |results| shader(&a, rows, compiler.cache_type, results);
    let whole = compiler.device.pipeline(&text(WHOLE)?)?;
    let partial = compiler.device.pipeline(&text(PARTIAL)?)?;
    let combine = compiler.device.pipeline(&combine(&a))?;
    debug_assert_ne!(y.home, Home::Scratch(0));
    let [scratch, ..] = scratch(&compiler.sizes());
    let (heads, partial_width, portion) = (a.heads, a.kv_lora_rank + 2, compiler.portion);
    let work = (2 * QUERIES * (a.kv_lora_rank + a.rope + a.kv_lora_rank)) as f64;
    Ok(Box::new(AttendLatent {
        whole,
        partial,
        combine,
        q,
        y,
        kv_layer,
        heads,
        partial_width,
        scratch,
        portion,
        work,
    }))
}
