//! The indexer of sparse attention: stores its keys in the KV cache, scores cached tokens, and
//! selects those with the largest scores.

use crate::cache::{packing, reading, with_pairs, with_rows, with_slots};
use crate::commands::{ShaderBinding, grid};
use crate::compile::{Compiler, ScratchLimits};
use crate::error::GpuError;
use crate::memory::SCRATCHES;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, MultiPass, StageRun};
use crate::shader::{Shader, ShaderConstant};
use crate::step_data::StepData;
use crate::values::{ShaderOperand, internal};
use crate::weights::DeviceVector;
use latent_backend::{BackendError, Batch};
use latent_graph::config::{AttentionShape, INDEX_NORM_EPS, IndexerShape};
use latent_graph::ir::{AttentionPath, KvLayer, Node};
use latent_types::CacheType;
use std::ops::Range;
use std::sync::Arc;

/// Index of the scratch buffer with scores.
const SCORES: usize = 1;

/// Cached tokens that a workgroup scores: one per thread of `index_scores.wgsl`.
const TOKENS_PER_GROUP: usize = 64;

fn store_shader(
    a: &AttentionShape,
    indexer: &IndexerShape,
    rows: &KvLayer,
    ty: CacheType,
) -> Result<Shader, BackendError> {
    let shader = match ty {
        CacheType::Int8 => Shader::new("index_store", include_str!("store_int8.wgsl")),
        _ => Shader::new("index_store", include_str!("store_rows.wgsl")).after(packing(ty)),
    };
    let shader = shader
        .after(include_str!("index_store.wgsl"))
        .after(include_str!("store_head.wgsl"))
        .with("EPS", ShaderConstant::Number(INDEX_NORM_EPS as f32));
    with_rows(with_pairs(shader, (a.rope / 2, indexer.pairs)), rows, ty)
}

fn score_shader(
    a: &AttentionShape,
    indexer: &IndexerShape,
    rows: &KvLayer,
    ty: CacheType,
) -> Result<Shader, BackendError> {
    let shader = Shader::new("index_scores", include_str!("index_scores.wgsl"))
        .after(reading(ty))
        .count("HEADS", indexer.heads);
    with_rows(with_slots(with_pairs(shader, (a.rope / 2, indexer.pairs))), rows, ty)
}

fn select_shader(indexer: &IndexerShape) -> Shader {
    Shader::new("index_select", include_str!("index_select.wgsl")).count("TOPK", indexer.topk)
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders(a: &AttentionShape) -> Vec<Shader> {
    use latent_graph::config::RopePairs;
    use latent_graph::ir::KvLayerKind;
    let mut all = Vec::new();
    for pairs in [RopePairs::NeoX, RopePairs::Interleaved] {
        let indexer = IndexerShape { heads: 64, width: 128, topk: 2048, pairs };
        let rows = KvLayer::of_rows(KvLayerKind::Index, 0, indexer.width, 0);
        for ty in crate::cache::CACHE_TYPES {
            all.push(store_shader(a, &indexer, &rows, ty).unwrap());
            all.push(score_shader(a, &indexer, &rows, ty).unwrap());
        }
        all.push(select_shader(&indexer));
    }
    all
}

fn indexer_of(compiler: &Compiler<'_>) -> Result<IndexerShape, BackendError> {
    let indexer = compiler.config.attention.indexer;
    indexer.map_or_else(|| internal("an indexer's operation in a model without one".into()), Ok)
}

struct IndexStoreShader {
    pipeline: Arc<ShaderPipeline>,
    key: ShaderOperand,
    gain: Arc<DeviceVector>,
    bias: Arc<DeviceVector>,
    kv_layer: usize,
}

/// cache[position] ← the key of the indexer.
pub(super) fn store(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let (kv_layer, rows) = compiler.kv_layer(node)?;
    let vector = |slot: &str| match node.weight(slot) {
        Some(id) => compiler.weights.vector(compiler.plan.ir.weight(id)),
        None => internal(format!("index_store lacks {slot}")),
    };
    let (gain, bias) = (vector("index_k_norm")?, vector("index_k_norm_bias")?);
    let key = compiler.cut(compiler.input(node, 0)?, rows.width)?;
    let a = &compiler.config.attention;
    let shader = store_shader(a, &indexer_of(compiler)?, rows, compiler.cache_type)?;
    Ok(Box::new(IndexStoreShader { pipeline: compiler.device.pipeline(&shader)?, key, gain, bias, kv_layer }))
}

impl GpuOperation for IndexStoreShader {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            let kv = run.kv.layer(run.first_kv_layer + self.kv_layer);
            let bindings: [(u32, ShaderBinding); 5] = [
                (1, run.step_buffer.into()),
                (2, kv.into()),
                (3, run.bind(&self.key)),
                (5, (&self.gain.buffer).into()),
                (6, (&self.bias.buffer).into()),
            ];
            let mut params = vec![rows.start as u32, rows.len() as u32, run.step.slots, run.step.angles];
            params.extend(self.key.address());
            // The parameters of `store_head.wgsl` for keys and values, which an index key does not
            // have.
            params.extend([0; 5]);
            run.commands.call_numbered(&self.pipeline, bindings, &params, grid(rows.len(), 1));
        }
        Ok(())
    }
}

struct IndexSelectShaders {
    score: Arc<ShaderPipeline>,
    select: Arc<ShaderPipeline>,
    q: ShaderOperand,
    weights: ShaderOperand,
    y: ShaderOperand,
    kv_layer: usize,
    indexer: IndexerShape,
    /// Number of scores that fit scratch memory.
    room: usize,
}

/// Rows of a span whose scores fit scratch memory.
struct SelectionPass {
    rows: Range<usize>,
    span_row: usize,
    past: usize,
    kv_len: usize,
    blocks: u32,
}

/// Bytes of scratch buffers, which hold the scores of cached tokens.
pub(super) fn scratch(sizes: &ScratchLimits<'_>) -> [u64; SCRATCHES] {
    let mut all = [0; SCRATCHES];
    // At least one row: a pass cannot have less.
    let row = 4 * sizes.config.context_length as u64;
    all[SCORES] = sizes.scratch.max(row).min(sizes.max_buffer);
    all
}

/// selected ← the positions of the largest scores.
pub(super) fn select(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let (kv_layer, rows) = compiler.kv_layer(node)?;
    let (a, indexer) = (&compiler.config.attention, indexer_of(compiler)?);
    let flat = |x: ShaderOperand| compiler.cut(x, x.row_width() as usize);
    let (q, weights) = (flat(compiler.input(node, 0)?)?, flat(compiler.input(node, 1)?)?);
    let y = flat(compiler.output(node, 0)?)?;
    let score = compiler.device.pipeline(&score_shader(a, &indexer, rows, compiler.cache_type)?)?;
    let select = compiler.device.pipeline(&select_shader(&indexer))?;
    let room = (scratch(&compiler.sizes())[SCORES] / 4) as usize;
    Ok(Box::new(IndexSelectShaders { score, select, q, weights, y, kv_layer, indexer, room }))
}

impl MultiPass for IndexSelectShaders {
    type ExpansionPass<'s> = SelectionPass;

    fn passes<'s>(
        &'s self,
        step: &'s StepData,
        (batch, _): (&Batch, usize),
        _path: AttentionPath,
    ) -> impl Iterator<Item = SelectionPass> {
        let mut passes = Vec::new();
        for (span, blocks) in batch.spans.iter().zip(&step.tables) {
            let kv_len = span.first + span.rows.len();
            // Earlier rows see at most `topk` tokens and attend to all of them.
            let first = span.rows.start + self.indexer.topk.saturating_sub(span.first);
            // The upper bound keeps the rows below the maximum of a grid's second dimension, 65535.
            let at_once = (self.room / kv_len.max(1)).clamp(1, 1 << 14);
            for start in (first..span.rows.end).step_by(at_once) {
                let rows = start..span.rows.end.min(start + at_once);
                let (span_row, past) = (span.rows.start, span.first);
                passes.push(SelectionPass { rows, span_row, past, kv_len, blocks: *blocks });
            }
        }
        passes.into_iter()
    }

    fn record_pass(
        &self,
        run: &mut StageRun<'_>,
        _path: AttentionPath,
        pass: SelectionPass,
    ) -> Result<(), GpuError> {
        let SelectionPass { rows, span_row, past, kv_len, blocks } = pass;
        let scores: ShaderBinding = (&run.memory.scratch[SCORES]).into();
        let [first_row, count, span_row, past, kv_len] =
            [rows.start, rows.len(), span_row, past, kv_len].map(|n| n as u32);
        let (q, w, y) = (&self.q, &self.weights, &self.y);
        let angles = run.step.angles;
        let params = [
            first_row,
            span_row,
            past,
            kv_len,
            blocks,
            angles,
            q.offset,
            q.row_stride,
            w.offset,
            w.row_stride,
        ];
        let kv = run.kv.layer(run.first_kv_layer + self.kv_layer);
        let bindings = [run.step_buffer.into(), run.bind(q), run.bind(w), kv.into(), scores.clone()];
        let tiles = kv_len.div_ceil(TOKENS_PER_GROUP as u32);
        run.commands.call(&self.score, bindings, &params, [tiles, count, 1]);
        let params = [first_row, count, span_row, past, kv_len, y.offset, y.row_stride];
        run.commands.call(&self.select, [scores, run.bind(y)], &params, grid(rows.len(), 1));
        Ok(())
    }
}
