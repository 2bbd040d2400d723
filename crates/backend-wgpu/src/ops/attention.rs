//! Attention: one shader, whose keys and values are latents, rows of heads, or what a step has expanded.

use crate::cache::{reading, with_rows, with_slots};
use crate::commands::{Binding, grid};
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::memory::SCRATCH;
use crate::pipeline::Pipeline;
use crate::run::{Operation, Run};
use crate::shader::Shader;
use crate::step_data::{TASK_WORDS, Tasks};
use crate::values::{Home, Operand, internal};
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, KvLayerKind, Node};
use std::sync::Arc;

const TEXT: &str = include_str!("attend.wgsl");

const ONE_QUERY: &str = "
fn query(row: u32, head: u32, d: u32) -> f32 {
    return q[params.q + row * params.q_row + head * params.q_head + d];
}
";
const TWO_QUERIES: &str = "
@group(0) @binding(7) var<storage, read> r: array<f32>;
fn query(row: u32, head: u32, d: u32) -> f32 {
    if (d < NOPE) { return q[params.q + row * params.q_row + head * params.q_head + d]; }
    return r[params.r + row * params.r_row + head * params.r_head + d - NOPE];
}
";
const LATENTS: &str = "
@group(0) @binding(4) var<storage, read> cache: array<u32>;
fn key(blocks: u32, position: u32, head: u32, d: u32) -> f32 {
    return cached(slot_of(blocks, position), d);
}
fn value(blocks: u32, position: u32, head: u32, d: u32) -> f32 {
    return cached(slot_of(blocks, position), d);
}
";
const HEADS: &str = "
@group(0) @binding(4) var<storage, read> cache: array<u32>;
fn key(blocks: u32, position: u32, head: u32, d: u32) -> f32 {
    return cached(slot_of(blocks, position), head * (KEY_WIDTH + VALUE_WIDTH) + d);
}
fn value(blocks: u32, position: u32, head: u32, d: u32) -> f32 {
    return cached(slot_of(blocks, position), head * (KEY_WIDTH + VALUE_WIDTH) + KEY_WIDTH + d);
}
";
const EXPANDED: &str = "
@group(0) @binding(4) var<storage, read> latents: array<f32>;
@group(0) @binding(5) var<storage, read> keys: array<f32>;
@group(0) @binding(6) var<storage, read> values: array<f32>;
fn key(blocks: u32, position: u32, head: u32, d: u32) -> f32 {
    if (d >= NOPE) { return latents[position * ROW_WIDTH + LATENT + d - NOPE]; }
    return keys[(position * params.heads + head - params.first_head) * NOPE + d];
}
fn value(blocks: u32, position: u32, head: u32, d: u32) -> f32 {
    return values[(position * params.heads + head - params.first_head) * VALUE_WIDTH + d];
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
/// Workgroups in the first dimension of a call.
const MOST_TASKS: u32 = 65535;

/// What keys and values are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Latent rows of the cache, which serve all heads.
    Latents,
    /// Rows of the cache with keys and values of each head.
    Heads,
    /// Keys and values that the step has expanded from latents, for some heads at a time.
    Expanded,
}

/// Attention to one kind of rows.
pub(super) struct Attention {
    whole: Arc<Pipeline>,
    q: Operand,
    r: Option<Operand>,
    y: Operand,
}

/// Which tasks, heads and splits a call is for.
pub(super) struct Call {
    pub(super) tasks: Tasks,
    /// The first head; of attention to latents 0.
    pub(super) first_head: usize,
    /// Heads; of attention to latents 1, since they are together.
    pub(super) heads: usize,
}

impl Attention {
    pub(super) fn new(
        compiler: &Compiler<'_>,
        node: &Node,
        source: Source,
        q: Operand,
        r: Option<Operand>,
        y: Operand,
    ) -> Result<Attention, BackendError> {
        let whole = compiler.device.pipeline(&shader(compiler, node, source, r.is_some())?.after(WHOLE))?;
        Ok(Attention { whole, q, r, y })
    }

    /// Adds calls over all cached rows.
    pub(super) fn record(&self, run: &mut Run<'_>, call: &Call, kv: &[Binding]) {
        let y = (run.bind(&self.y), self.y.address());
        self.add(run, &self.whole, call, kv, y, (u32::MAX, 1, call.heads));
    }

    /// Adds calls whose results, of `splits` splits each, are in a buffer.
    fn add(
        &self,
        run: &mut Run<'_>,
        pipeline: &Arc<Pipeline>,
        call: &Call,
        kv: &[Binding],
        (y, address): (Binding, [u32; 3]),
        (split_rows, splits, heads): (u32, u32, usize),
    ) {
        for first in (0..call.tasks.count).step_by(MOST_TASKS as usize) {
            let mut params =
                vec![call.tasks.at + first * TASK_WORDS, call.first_head as u32, run.step.scales];
            params.extend([split_rows, splits]);
            params.extend(self.q.address());
            params.extend(self.r.map_or([0; 3], |r| r.address()));
            params.extend(address);
            params.push(heads as u32);
            let mut bindings: Vec<(u32, Binding)> =
                vec![(1, run.step_buffer.into()), (2, run.bind(&self.q)), (3, y.clone())];
            bindings.extend((4..).zip(kv.iter().cloned()));
            bindings.extend(self.r.as_ref().map(|r| (7, run.bind(r))));
            let groups = [(call.tasks.count - first).min(MOST_TASKS), call.heads as u32, splits];
            run.commands.call_numbered(pipeline, bindings, &params, groups);
        }
    }
}

fn shader(compiler: &Compiler<'_>, node: &Node, source: Source, two: bool) -> Result<Shader, BackendError> {
    let a = compiler.config.attention;
    let (_, rows) = compiler.kv_layer(node)?;
    let shader = Shader::new("attend", TEXT)
        .after(if two { TWO_QUERIES } else { ONE_QUERY })
        .count("TASK_WORDS", TASK_WORDS as usize)
        .count("NOPE", a.nope)
        .count("LATENT", a.kv_lora_rank);
    let shader = with_rows(shader, rows, compiler.cache_type)?;
    let cached = |shader: Shader| with_slots(shader.after(reading(compiler.cache_type)));
    Ok(match source {
        Source::Latents => cached(shader.after(LATENTS))
            .count("KEY_WIDTH", a.kv_lora_rank + a.rope)
            .count("VALUE_WIDTH", a.kv_lora_rank)
            .count("SHARING", a.heads),
        Source::Heads => cached(shader.after(HEADS))
            .count("KEY_WIDTH", a.nope + a.rope)
            .count("VALUE_WIDTH", a.v)
            .count("SHARING", 1),
        Source::Expanded => shader
            .after(EXPANDED)
            .count("KEY_WIDTH", a.nope + a.rope)
            .count("VALUE_WIDTH", a.v)
            .count("SHARING", 1),
    })
}

/// Attention of all heads to one row per token, whose first elements are the value too.
struct AttendLatent {
    attention: Attention,
    partial: Arc<Pipeline>,
    combine: Arc<Pipeline>,
    kv_layer: usize,
    heads: usize,
    /// Floats of a partial result.
    partial_width: usize,
}

impl Operation for AttendLatent {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let kv = [Binding::from(run.kv.layer(run.first_kv_layer + self.kv_layer))];
        let lists: Vec<Tasks> = run.step.shared(path).collect();
        for tasks in lists {
            let splits = self.splits(run.rows, tasks);
            let call = Call { tasks, first_head: 0, heads: 1 };
            if splits < 2 {
                self.attention.record(run, &call, &kv);
                continue;
            }
            let split_rows = tasks.kv_len.div_ceil(splits).next_multiple_of(LEAST_SPLIT);
            let splits = tasks.kv_len.div_ceil(split_rows) as u32;
            let partials = (Binding::from(&run.memory.scratch[0]), [0; 3]);
            let cut = (split_rows as u32, splits, self.heads);
            self.attention.add(run, &self.partial, &call, &kv, partials, cut);
            self.combine(run, path, splits);
        }
        Ok(())
    }
}

impl AttendLatent {
    /// Into how many splits the KV ranges of a step are cut.
    fn splits(&self, rows: usize, tasks: Tasks) -> usize {
        if rows > SPLIT_ROWS {
            return 1;
        }
        let wanted = BUSY.div_ceil(tasks.count as usize).min(tasks.kv_len.div_ceil(LEAST_SPLIT));
        wanted.min(SCRATCH as usize / (4 * rows * self.heads * self.partial_width))
    }

    fn combine(&self, run: &mut Run<'_>, path: AttentionPath, splits: u32) {
        for rows in run.ranges(path) {
            let y = &self.attention.y;
            let mut params = vec![rows.start as u32, rows.len() as u32, self.heads as u32, splits];
            params.extend(y.address());
            let bindings = [Binding::from(&run.memory.scratch[0]), run.bind(y)];
            run.commands.call(&self.combine, bindings, &params, grid(rows.len() * self.heads, 1));
        }
    }
}

pub(super) fn latent(compiler: &mut Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
    let (kv_layer, rows) = compiler.kv_layer(node)?;
    if rows.kind != KvLayerKind::Latent {
        return internal("attention to latents over expanded rows".into());
    }
    let a = compiler.config.attention;
    let (q, y) = (compiler.input(node, 0)?, compiler.output(node, 0)?);
    let attention = Attention::new(compiler, node, Source::Latents, q, None, y)?;
    let partial = shader(compiler, node, Source::Latents, false)?.after(PARTIAL);
    let partial = compiler.device.pipeline(&partial)?;
    let combine = Shader::new("combine_splits", include_str!("combine_splits.wgsl"));
    let combine = compiler.device.pipeline(&combine.count("VALUE_WIDTH", a.kv_lora_rank))?;
    debug_assert_ne!(attention.y.home, Home::Scratch(0));
    compiler.needs.scratch([SCRATCH, 0, 0]);
    let partial_width = a.kv_lora_rank + 2;
    Ok(Box::new(AttendLatent { attention, partial, combine, kv_layer, heads: a.heads, partial_width }))
}
