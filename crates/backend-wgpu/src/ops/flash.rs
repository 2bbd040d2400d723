//! Flash attention of many rows to keys and values of each head, which are in the cache or expanded
//! by the step.

use crate::cache::{reading, with_rows, with_slots};
use crate::commands::{Commands, ShaderBinding};
use crate::compile::{Compiler, ScratchLimits};
use crate::device::Device;
use crate::memory::SCRATCHES;
use crate::pipeline::ShaderPipeline;
use crate::run::{AttentionQueries, StageRun};
use crate::shader::Shader;
use crate::step_data::{TASK_WORDS, TILE_QUERIES, TaskRange};
use crate::values::ShaderOperand;
use latent_backend::BackendError;
use latent_graph::config::AttentionShape;
#[cfg(test)]
use latent_graph::ir::KvLayerKind;
use latent_graph::ir::{KvLayer, Node};
use latent_types::CacheType;
use std::ops::Range;
use std::sync::Arc;

const TEXT: &str = include_str!("flash.wgsl");

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
const CACHED: &str = "
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
    let at = position - params.first_key;
    if (d >= NOPE) { return latents[at * ROW_WIDTH + LATENT + d - NOPE]; }
    return keys[(at * params.heads + head) * NOPE + d];
}
fn value(blocks: u32, position: u32, head: u32, d: u32) -> f32 {
    return values[((position - params.first_key) * params.heads + head) * VALUE_WIDTH + d];
}
";

/// Index of the scratch buffer with the running maximum and sum of each head of each row, which
/// continue from one range of keys to the next.
const STATES: usize = 3;

/// Bytes of scratch buffers.
pub(super) fn scratch(sizes: &ScratchLimits<'_>) -> [u64; SCRATCHES] {
    let mut scratch = [0; SCRATCHES];
    // A maximum and a sum in f32.
    scratch[STATES] = 8 * (sizes.rows() * sizes.config.attention.heads) as u64;
    scratch
}

/// The source of keys and values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KvSource {
    /// Rows of an expanded KV cache.
    Cache,
    /// Buffers into which the step has expanded some positions.
    Expanded,
}

/// The shader. `two_queries`: the rotated parts of queries are a separate value.
fn shader(
    a: &AttentionShape,
    rows: &KvLayer,
    cache: CacheType,
    (source, two_queries): (KvSource, bool),
) -> Result<Shader, BackendError> {
    let shader = Shader::new("flash", TEXT)
        .after(if two_queries { TWO_QUERIES } else { ONE_QUERY })
        .count("TASK_WORDS", TASK_WORDS as usize)
        .count("QUERIES", TILE_QUERIES)
        .count("NOPE", a.nope)
        .count("LATENT", a.kv_lora_rank)
        .count("KEY_WIDTH", a.nope + a.rope)
        .count("VALUE_WIDTH", a.v);
    let shader = match source {
        KvSource::Cache => with_slots(shader.after(CACHED).after(reading(cache))),
        KvSource::Expanded => shader.after(EXPANDED),
    };
    with_rows(shader, rows, cache)
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders(a: &AttentionShape) -> Vec<Shader> {
    let heads = KvLayer::of_rows(KvLayerKind::Expanded, 0, a.heads * (a.nope + a.rope + a.v), 0);
    let latents = KvLayer::of_rows(KvLayerKind::Latent, 0, a.latent_width(), a.rope);
    let mut all = Vec::new();
    for two in [false, true] {
        all.extend(crate::cache::CACHE_TYPES.map(|ty| shader(a, &latents, ty, (KvSource::Expanded, two))));
        // Only latents can be cached in int8.
        let floats = crate::cache::CACHE_TYPES.into_iter().filter(|ty| ty.is_float());
        all.extend(floats.map(|ty| shader(a, &heads, ty, (KvSource::Cache, two))));
    }
    all.into_iter().map(Result::unwrap).collect()
}

/// The compiled shader for one KV layer.
pub(crate) struct FlashShader {
    pipeline: Arc<ShaderPipeline>,
    heads: usize,
}

/// The buffers of a [`FlashShader`].
pub(crate) struct FlashBuffers<'b> {
    pub(crate) queries: AttentionQueries,
    /// The rotated parts of queries, if they are a separate value.
    pub(crate) r: Option<(ShaderBinding, [u32; 3])>,
    /// The KV layer, or latents, keys and values.
    pub(crate) kv: &'b [ShaderBinding],
    /// Running maximum and sum of each head of each row.
    pub(crate) states: ShaderBinding,
}

impl FlashShader {
    pub(crate) fn new(
        device: &Arc<Device>,
        a: &AttentionShape,
        rows: &KvLayer,
        cache: CacheType,
        kind: (KvSource, bool),
    ) -> Result<FlashShader, BackendError> {
        Ok(FlashShader { pipeline: device.pipeline(&shader(a, rows, cache, kind)?)?, heads: a.heads })
    }

    /// Records a call for a range of keys. The ranges of consecutive calls must ascend from 0.
    pub(crate) fn call(
        &self,
        commands: &mut Commands,
        tasks: TaskRange,
        keys: &Range<usize>,
        buffers: FlashBuffers<'_>,
    ) {
        let FlashBuffers { queries: AttentionQueries { step, scales, q, y }, r, kv, states } = buffers;
        let mut params = vec![tasks.at, keys.start as u32, keys.end as u32, scales, self.heads as u32];
        params.extend(q.1);
        params.extend(r.as_ref().map_or([0; 3], |(_, address)| *address));
        params.extend(y.1);
        // Bindings have numbers, because shaders without `r`, or with fewer buffers of keys, leave
        // some out.
        let mut bindings: Vec<(u32, ShaderBinding)> = vec![(1, step), (2, q.0), (3, y.0)];
        bindings.extend((4..).zip(kv.iter().cloned()));
        bindings.extend(r.map(|(binding, _)| (7, binding)));
        bindings.push((8, states));
        commands.call_numbered(&self.pipeline, bindings, &params, [tasks.count, self.heads as u32, 1]);
    }
}

/// The shader with its operands in a plan.
pub(super) struct FlashAttention {
    shader: FlashShader,
    q: ShaderOperand,
    r: Option<ShaderOperand>,
    y: ShaderOperand,
    /// Maximum arithmetic operations per portion of a step.
    portion: f64,
    /// Arithmetic operations of a task in all heads, per position.
    work: f64,
}

impl FlashAttention {
    pub(super) fn new(
        compiler: &Compiler<'_>,
        node: &Node,
        source: KvSource,
        (q, r, y): (ShaderOperand, Option<ShaderOperand>, ShaderOperand),
    ) -> Result<FlashAttention, BackendError> {
        let a = compiler.config.attention;
        let (_, rows) = compiler.kv_layer(node)?;
        let kind = (source, r.is_some());
        let shader = FlashShader::new(compiler.device, &a, rows, compiler.cache_type, kind)?;
        // A product and a sum for each element of a key and of a value.
        let work = (2 * TILE_QUERIES * a.heads * (a.nope + a.rope + a.v)) as f64;
        Ok(FlashAttention { shader, q, r, y, portion: compiler.portion, work })
    }

    /// Cuts tasks that attend to `positions` positions into pieces that fit a portion of a step.
    pub(super) fn pieces(
        &self,
        tasks: TaskRange,
        positions: usize,
    ) -> impl Iterator<Item = TaskRange> + use<> {
        tasks.pieces(self.portion, self.work * positions as f64)
    }

    /// Records a call for a range of keys. The ranges of consecutive calls must ascend from 0.
    pub(super) fn record(
        &self,
        run: &mut StageRun<'_>,
        tasks: TaskRange,
        keys: &Range<usize>,
        kv: &[ShaderBinding],
    ) {
        let buffers = FlashBuffers {
            queries: run.queries(&self.q, &self.y),
            r: self.r.as_ref().map(|r| (run.bind(r), r.address())),
            kv,
            states: (&run.memory.scratch[STATES]).into(),
        };
        self.shader.call(run.commands, tasks, keys, buffers);
    }
}
