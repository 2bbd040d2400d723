//! The shaders of attention to latents. A workgroup computes several queries (heads of one or more
//! rows), which read each latent row together.

use crate::cache::{reading, with_rows, with_slots};
use crate::commands::{Commands, ShaderBinding, grid};
use crate::device::Device;
use crate::pipeline::ShaderPipeline;
use crate::run::AttentionQueries;
use crate::shader::Shader;
use crate::step_data::{QUERIES, TASK_WORDS, TaskRange};
use latent_backend::BackendError;
use latent_graph::config::AttentionShape;
use latent_graph::ir::KvLayer;
#[cfg(test)]
use latent_graph::ir::KvLayerKind;
use latent_types::CacheType;
use std::ops::Range;
use std::sync::Arc;

const TEXT: &str = include_str!("attend.wgsl");

const LATENTS: &str = "
@group(0) @binding(4) var<storage, read> cache: array<u32>;
";
const ALL_TOKENS: &str = "
fn attended(list: u32, seen: u32, j: u32) -> u32 { return j; }
";
const SELECTED_TOKENS: &str = "
@group(0) @binding(5) var<storage, read> selected: array<u32>;
fn attended(list: u32, seen: u32, j: u32) -> u32 {
    if (seen <= MAX_ATTENDED) { return j; }
    return selected[list + j];
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

/// Columns per workgroup that combines splits.
const COMBINED_COLUMNS: usize = 64;
/// Minimum cached rows per split: a tile of `attend.wgsl`.
const MIN_SPLIT: usize = 32;
/// Number of workgroups that keeps a device busy.
// It is also the maximum number of splits per task, which `combine_splits.wgsl` holds in workgroup
// memory.
const BUSY_WORKGROUPS: usize = 256;

/// The shader of attention. `results` is [`WHOLE`], or [`PARTIAL`] for splits. `max_attended` is
/// the maximum number of tokens that a row attends to, if they are selected.
fn shader(
    a: &AttentionShape,
    rows: &KvLayer,
    cache: CacheType,
    results: &'static str,
    max_attended: Option<usize>,
) -> Result<Shader, BackendError> {
    let shader = Shader::new("attend", TEXT)
        .after(LATENTS)
        .after(if max_attended.is_some() { SELECTED_TOKENS } else { ALL_TOKENS })
        .count("MAX_ATTENDED", max_attended.unwrap_or(usize::MAX))
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
    Shader::new("combine_splits", include_str!("combine_splits.wgsl"))
        .count("VALUE_WIDTH", a.kv_lora_rank)
        .count("MAX_SPLITS", BUSY_WORKGROUPS)
        .count("COLUMNS", COMBINED_COLUMNS)
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders(a: &AttentionShape) -> Vec<Shader> {
    let rows = KvLayer::of_rows(KvLayerKind::Latent, 0, a.latent_width(), a.rope);
    let kinds = [(WHOLE, None), (PARTIAL, None), (WHOLE, Some(2048)), (PARTIAL, Some(2048))];
    let of = |cache| kinds.map(|(results, attended)| shader(a, &rows, cache, results, attended).unwrap());
    crate::cache::CACHE_TYPES.into_iter().flat_map(of).chain([combine(a)]).collect()
}

/// The compiled shaders for one KV layer.
pub(crate) struct LatentAttention {
    whole: Arc<ShaderPipeline>,
    partial: Arc<ShaderPipeline>,
    combine: Arc<ShaderPipeline>,
    heads: usize,
    /// Floats of a partial result.
    partial_width: usize,
    /// Arithmetic operations of a task per cached row.
    pub(super) work: f64,
}

/// The buffers of a [`LatentAttention`].
pub(crate) struct LatentBuffers {
    pub(crate) queries: AttentionQueries,
    /// The KV layer.
    pub(crate) kv: ShaderBinding,
    /// The selected tokens of each row, with their offset and row stride.
    pub(crate) selected: Option<(ShaderBinding, [u32; 2])>,
    /// Partial results, if KV ranges are cut into splits.
    pub(crate) partials: ShaderBinding,
}

/// The division of the tasks' KV range into splits of equal size.
#[derive(Clone, Copy)]
pub(crate) struct LatentSplits {
    rows: u32,
    pub(crate) count: u32,
}

impl LatentAttention {
    pub(crate) fn new(
        device: &Arc<Device>,
        a: &AttentionShape,
        rows: &KvLayer,
        cache: CacheType,
        max_attended: Option<usize>,
    ) -> Result<LatentAttention, BackendError> {
        let pipeline = |results| {
            Ok::<_, BackendError>(device.pipeline(&shader(a, rows, cache, results, max_attended)?)?)
        };
        let (whole, partial) = (pipeline(WHOLE)?, pipeline(PARTIAL)?);
        let combine = device.pipeline(&combine(a))?;
        let (heads, partial_width) = (a.heads, a.kv_lora_rank + 2);
        // A product and a sum for each element of the key, and for each of the value.
        let work = (2 * QUERIES * (a.latent_width() + a.kv_lora_rank)) as f64;
        Ok(LatentAttention { whole, partial, combine, heads, partial_width, work })
    }

    /// Bytes of the partial results of `rows` rows per split.
    pub(crate) fn partial_bytes(&self, rows: usize) -> usize {
        4 * rows * self.heads * self.partial_width
    }

    /// The number of splits that keeps the device busy with tasks of `rows` rows and whose partial
    /// results fit `room` bytes. None if one split suffices.
    pub(crate) fn splits(&self, rows: usize, tasks: TaskRange, room: u64) -> Option<LatentSplits> {
        let wanted = BUSY_WORKGROUPS.div_ceil(tasks.count as usize);
        // A workgroup reads cached rows in tiles: a smaller split would waste a part of its tile.
        let wanted = wanted.min(tasks.kv_len.div_ceil(MIN_SPLIT));
        LatentSplits::of(tasks.kv_len, wanted.min(room as usize / self.partial_bytes(rows)))
    }

    /// Records a call for tasks, with or without splits.
    pub(crate) fn attend(
        &self,
        commands: &mut Commands,
        buffers: &LatentBuffers,
        tasks: TaskRange,
        splits: Option<LatentSplits>,
    ) {
        let AttentionQueries { step, scales, q, y } = &buffers.queries;
        // Splits write sums that are not divided yet, because each split knows only its own maximum
        // and total. `combine` divides them.
        let (pipeline, (y, address)) = match splits {
            // Partial results are addressed by `partial` in the shader.
            Some(_) => (&self.partial, (&buffers.partials, [0; 3])),
            None => (&self.whole, (&y.0, y.1)),
        };
        // Without splits, one split has all rows.
        let LatentSplits { rows, count } = splits.unwrap_or(LatentSplits { rows: u32::MAX, count: 1 });
        let mut params = vec![tasks.at, *scales, rows, count];
        params.extend(q.1);
        params.extend(address);
        params.push(self.heads as u32);
        let mut bindings = [step, &q.0, y, &buffers.kv].map(ShaderBinding::clone).to_vec();
        if let Some((selected, address)) = &buffers.selected {
            bindings.push(selected.clone());
            params.extend(address);
        } else {
            params.extend([0; 2]);
        }
        commands.call(pipeline, bindings, &params, [tasks.count, count, 1]);
    }

    /// Records a call that combines the partial results of some rows.
    pub(crate) fn combine(
        &self,
        commands: &mut Commands,
        buffers: &LatentBuffers,
        rows: &Range<usize>,
        splits: LatentSplits,
    ) {
        let mut params = vec![rows.start as u32, rows.len() as u32, self.heads as u32, splits.count];
        let (y, address) = &buffers.queries.y;
        params.extend(address);
        let bindings = [buffers.partials.clone(), y.clone()];
        let chunks = (self.partial_width - 2).div_ceil(COMBINED_COLUMNS);
        commands.call(&self.combine, bindings, &params, grid(rows.len() * self.heads * chunks, 1));
    }
}

impl LatentSplits {
    /// Cuts `kv_len` rows into at most `count` equal splits of whole tiles. None if `count` is less
    /// than 2.
    pub(crate) fn of(kv_len: usize, count: usize) -> Option<LatentSplits> {
        if count < 2 {
            return None;
        }
        // Whole tiles may leave fewer splits than `count`.
        let rows = kv_len.div_ceil(count).next_multiple_of(MIN_SPLIT);
        Some(LatentSplits { rows: rows as u32, count: kv_len.div_ceil(rows) as u32 })
    }
}
