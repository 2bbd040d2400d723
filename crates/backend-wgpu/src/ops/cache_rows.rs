//! Writes rows of the KV cache: latents, or expanded keys and values.

use super::head_products::{HeadProducts, LatentProjection};
use super::rms_norm::with_norm;
use crate::cache::{packing, row_words, with_pairs, with_rows};
use crate::commands::{ShaderBinding, grid};
use crate::compile::{Compiler, ScratchLimits};
use crate::error::GpuError;
use crate::memory::SCRATCHES;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, StageRun};
use crate::shader::Shader;
use crate::values::{ShaderOperand, ValueBuffer, count, internal};
use crate::weights::{DeviceVector, slot};
use latent_backend::BackendError;
use latent_graph::config::{AttentionShape, RopePairs};
#[cfg(test)]
use latent_graph::ir::KvLayerKind;
use latent_graph::ir::{AttentionPath, KvLayer, Node};
use latent_types::CacheType;
use std::ops::Range;
use std::sync::Arc;

const HEAD: &str = include_str!("store_head.wgsl");
const WORDS: &str = include_str!("store.wgsl");
const ROWS: &str = include_str!("store_rows.wgsl");
const INT8: &str = include_str!("store_int8.wgsl");
const LATENT: &str = "
fn element(row: u32, i: u32) -> f32 {
    if (i < LATENT) { return latent(row, i); }
    return key(row, i - LATENT);
}
";
const EXPANDED: &str = "
@group(0) @binding(5) var<storage, read> v: array<f32>;
fn element(row: u32, i: u32) -> f32 {
    let head = i / HEAD_WIDTH;
    let within = i % HEAD_WIDTH;
    if (within < NOPE) { return x[params.x + row * params.x_row + head * params.x_head + within]; }
    if (within < NOPE + ROPE) { return key(row, within - NOPE); }
    return v[params.v + row * params.v_row + head * params.v_head + within - NOPE - ROPE];
}
";
const PLAIN: &str = "
fn prepare(row: u32, thread: u32) {}
fn latent(row: u32, i: u32) -> f32 { return x[params.x + row * params.x_row + i]; }
";
const NORMALIZED: &str = "
@group(0) @binding(6) var<storage, read> gain: array<f32>;
var<private> factor: f32;
fn prepare(row: u32, thread: u32) {
    var sum = 0.0;
    // A constant number of turns: their loads wait together.
    for (var turn = 0u; turn < (LATENT + THREADS - 1u) / THREADS; turn++) {
        let i = turn * THREADS + thread;
        let element = select(0.0, x[params.x + row * params.x_row + min(i, LATENT - 1u)], i < LATENT);
        sum += element * element;
    }
    factor = norm_factor(sum, thread);
}
fn latent(row: u32, i: u32) -> f32 { return x[params.x + row * params.x_row + i] * factor * gain[i]; }
";
const KEY: &str = "
fn key(row: u32, i: u32) -> f32 { return k[params.k + row * params.k_row + i]; }
";
const ROTATED: &str = "
fn key(row: u32, i: u32) -> f32 {
    let pair = pair_of(i);
    let turn = params.angles + (row * PAIRS + pair) * 2u;
    let angle = vec2<f32>(bitcast<f32>(step[turn]), bitcast<f32>(step[turn + 1u]));
    let from_row = params.k + row * params.k_row;
    let turned = rotated(k[from_row + first_of(pair)], k[from_row + second_of(pair)], angle);
    return select(turned.x, turned.y, is_second(i));
}
";

/// The division of the work into workgroups.
enum WorkgroupSplit {
    /// A workgroup per row.
    Rows,
    /// An invocation per word, of rows with this number of words.
    Words(usize),
}

/// A shader that stores rows, for one KV layer.
struct RowStoreShader {
    pipeline: Arc<ShaderPipeline>,
    groups: WorkgroupSplit,
    kv_layer: usize,
    /// The weight of a norm that is applied first.
    gain: Option<Arc<DeviceVector>>,
}

/// The parts of a shader that stores rows.
#[derive(Clone, Copy)]
struct StoreShaderText {
    name: &'static str,
    /// WGSL with the function `element(row: u32, i: u32) -> f32`.
    elements: &'static str,
    /// Whether latents are normalized.
    norm: bool,
    /// Whether the key is rotated.
    rotates: bool,
}

impl StoreShaderText {
    /// Whether a workgroup stores a whole row.
    fn by_rows(self, ty: CacheType) -> bool {
        // Scales and norms depend on all elements of a row.
        self.norm || ty == CacheType::Int8
    }

    fn shader(
        self,
        (a, rows): (&AttentionShape, &KvLayer),
        ty: CacheType,
        (eps, pairs): (f64, RopePairs),
    ) -> Result<Shader, BackendError> {
        let shader = match (ty, self.by_rows(ty)) {
            (CacheType::Int8, _) => Shader::new(self.name, INT8),
            (_, true) => Shader::new(self.name, ROWS).after(packing(ty)),
            (_, false) => Shader::new(self.name, WORDS).after(packing(ty)),
        };
        let shader = shader
            .after(self.elements)
            .after(if self.norm { NORMALIZED } else { PLAIN })
            .after(if self.rotates { ROTATED } else { KEY })
            .after(HEAD)
            .count("LATENT", a.kv_lora_rank)
            .count("HEAD_WIDTH", a.nope + a.rope + a.v)
            .count("NOPE", a.nope)
            .count("ROPE", a.rope);
        let shader = if self.norm { with_norm(shader, a.kv_lora_rank, eps) } else { shader };
        let shader = if self.rotates { with_pairs(shader, ((a.rope / 2).max(1), pairs)) } else { shader };
        with_rows(shader, rows, ty)
    }
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders(a: &AttentionShape) -> Vec<Shader> {
    let latents = KvLayer::of_rows(KvLayerKind::Latent, 0, a.latent_width(), a.rope);
    let heads = KvLayer::of_rows(KvLayerKind::Expanded, 0, a.heads * (a.nope + a.rope + a.v), 0);
    let mut all = Vec::new();
    for (norm, rotates, pairs) in [
        (false, false, RopePairs::NeoX),
        (false, true, RopePairs::NeoX),
        (true, false, RopePairs::NeoX),
        (true, true, RopePairs::Interleaved),
    ] {
        for ty in crate::cache::CACHE_TYPES {
            let text = StoreShaderText { name: "latent_store", elements: LATENT, norm, rotates };
            all.push(text.shader((a, &latents), ty, (1e-6, pairs)).unwrap());
            // int8 is for latents only, and expanded rows have no norm here.
            if ty.is_float() && !norm {
                let text = StoreShaderText { name: "expanded_store", elements: EXPANDED, norm, rotates };
                all.push(text.shader((a, &heads), ty, (1e-6, pairs)).unwrap());
            }
        }
    }
    all
}

impl RowStoreShader {
    /// Compiles the shader of a node. `elements` is WGSL with `element(row: u32, i: u32) -> f32`.
    fn new(
        compiler: &Compiler<'_>,
        node: &Node,
        name: &'static str,
        elements: &'static str,
    ) -> Result<RowStoreShader, BackendError> {
        let (kv_layer, rows) = compiler.kv_layer(node)?;
        let (a, ty) = (compiler.config.attention, compiler.cache_type);
        let norm = node.prologue.norm.map(|id| compiler.plan.ir.weight(id));
        let gain = norm.map(|weight| compiler.weights.vector(weight)).transpose()?;
        let eps = compiler.config.norm_eps(norm.map_or("", |weight| &weight.slot));
        let pairs = compiler.rotation.pairs();
        let text = StoreShaderText { name, elements, norm: gain.is_some(), rotates: node.prologue.rope };
        let shader = text.shader((&a, rows), ty, (eps, pairs))?;
        let groups =
            if text.by_rows(ty) { WorkgroupSplit::Rows } else { WorkgroupSplit::Words(row_words(rows, ty)?) };
        let pipeline = compiler.device.pipeline(&shader)?;
        Ok(RowStoreShader { pipeline, groups, kv_layer, gain })
    }

    fn record(
        &self,
        run: &mut StageRun<'_>,
        rows: Range<usize>,
        [x, k]: [ShaderOperand; 2],
        v: Option<ShaderOperand>,
    ) {
        let kv = run.kv.layer(run.first_kv_layer + self.kv_layer);
        let mut bindings: Vec<(u32, ShaderBinding)> =
            vec![(1, run.step_buffer.into()), (2, kv.into()), (3, run.bind(&x)), (4, run.bind(&k))];
        // Shaders without `v`, or without a norm, do not declare these bindings.
        bindings.extend(v.as_ref().map(|v| (5, run.bind(v))));
        bindings.extend(self.gain.as_ref().map(|gain| (6, (&gain.buffer).into())));
        let mut params = vec![rows.start as u32, rows.len() as u32, run.step.slots, run.step.angles];
        params.extend(x.address());
        params.extend([k.offset, k.row_stride]);
        params.extend(v.map_or([0; 3], |v| v.address()));
        let groups = match self.groups {
            WorkgroupSplit::Rows => grid(rows.len(), 1),
            WorkgroupSplit::Words(row_words) => grid(rows.len() * row_words, 64),
        };
        run.commands.call_numbered(&self.pipeline, bindings, &params, groups);
    }
}

struct LatentStore {
    store: RowStoreShader,
    latent: ShaderOperand,
    /// The rope key, shared by all heads. In a model without RoPE it is not read, and is the latent
    /// because the binding must be filled.
    key: ShaderOperand,
}

impl GpuOperation for LatentStore {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            self.store.record(run, rows, [self.latent, self.key], None);
        }
        Ok(())
    }
}

/// cache[position] ← [latent | rotated key].
pub(super) fn latent(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let store = RowStoreShader::new(compiler, node, "latent_store", LATENT)?;
    let latent = compiler.input(node, 0)?;
    let key = compiler.input_at(node, "k_rope")?.unwrap_or(latent);
    Ok(Box::new(LatentStore { store, latent, key }))
}

struct ExpandedStore {
    store: RowStoreShader,
    keys: HeadProducts,
    values: HeadProducts,
    latent: ShaderOperand,
    key: ShaderOperand,
    rows_at_once: usize,
}

impl GpuOperation for ExpandedStore {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for range in run.ranges(path) {
            for first in range.clone().step_by(self.rows_at_once) {
                let rows = first..range.end.min(first + self.rows_at_once);
                // Every head reads the whole latent.
                let x = ShaderOperand { head_stride: 0, ..self.latent };
                let [keys, values] = [(1, &self.keys), (2, &self.values)]
                    .map(|(scratch, products)| heads_in(scratch, products, first));
                for (products, y) in [(&self.keys, &keys), (&self.values, &values)] {
                    products.record(run, rows.clone(), [&x, y], 0..products.heads())?;
                }
                self.store.record(run, rows, [keys, self.key], Some(values));
            }
        }
        Ok(())
    }
}

/// Results of all heads of rows from `first` on, contiguous in scratch memory.
fn heads_in(scratch: usize, products: &HeadProducts, first: usize) -> ShaderOperand {
    let (heads, width) = (products.heads() as u32, products.outputs() as u32);
    let row_stride = heads * width;
    // Shaders add row * row_stride to the offset. The negative offset lets row `first` begin at 0,
    // since u32 arithmetic wraps in WGSL too.
    let offset = 0u32.wrapping_sub((first as u32).wrapping_mul(row_stride));
    ShaderOperand {
        home: ValueBuffer::Scratch(scratch),
        offset,
        row_stride,
        head_stride: width,
        heads,
        width,
    }
}

/// Number of elements of a row's keys, and of its values, in all heads.
fn widths(sizes: &ScratchLimits<'_>) -> [usize; 2] {
    let a = &sizes.config.attention;
    [a.heads * a.nope, a.heads * a.v]
}

/// Number of rows whose keys and values fit scratch memory.
fn rows_at_once(sizes: &ScratchLimits<'_>) -> usize {
    // At least 1, since it is a divisor.
    let row = 4 * widths(sizes).into_iter().fold(1, usize::max) as u64;
    let rows = usize::try_from(sizes.scratch.min(sizes.max_buffer) / row).unwrap_or(usize::MAX);
    rows.clamp(1, sizes.rows())
}

/// Bytes of scratch buffers for an expanded cache, and rows that are expanded per pass.
pub(super) fn needs(sizes: &ScratchLimits<'_>) -> ([u64; SCRATCHES], usize) {
    let rows = rows_at_once(sizes);
    let [keys, values] = widths(sizes).map(|width| 4 * (rows * width) as u64);
    ([0, keys, values, 0], rows)
}

/// cache[position] ← per head [W_UK latent | rotated key | W_UV latent].
pub(super) fn expanded(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let a = compiler.config.attention;
    // Files have either `kv_b`, or `k_b` and `v_b`.
    let (Some(keys), Some(values)) = (slot(node, &["k_b", "kv_b"]), slot(node, &["v_b", "kv_b"])) else {
        return internal("expanded_store without W_UK and W_UV".into());
    };
    let keys = HeadProducts::new(compiler, keys, LatentProjection::Keys)?;
    let values = HeadProducts::new(compiler, values, LatentProjection::Values)?;
    let store = RowStoreShader::new(compiler, node, "expanded_store", EXPANDED)?;
    let latent = compiler.input(node, 0)?;
    // `heads_in` relies on strides of 32 bits.
    count(a.heads * a.nope.max(a.v))?;
    let rows_at_once = rows_at_once(&compiler.sizes());
    let key = compiler.input_at(node, "k_rope")?.unwrap_or(latent);
    Ok(Box::new(ExpandedStore { store, keys, values, latent, key, rows_at_once }))
}
