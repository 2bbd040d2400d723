//! Attention to keys and values of each head, which are read from the cache or expanded from
//! latents. As many positions are expanded per pass as fit scratch memory.

use super::flash::{self, FlashAttention, KvSource};
use super::head_products::{HeadProducts, LatentProjection};
use crate::cache::{reading, with_rows, with_slots};
use crate::commands::{ShaderBinding, grid};
use crate::compile::{Compiler, ScratchLimits};
use crate::error::GpuError;
use crate::memory::SCRATCHES;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, MultiPass, StageRun};
use crate::shader::Shader;
use crate::step_data::{SpanTasks, StepData, TaskRange};
use crate::values::{ShaderOperand, ValueBuffer, count, internal};
use crate::weights::slot;
use latent_backend::{BackendError, Batch, KV_BLOCK};
#[cfg(test)]
use latent_graph::config::AttentionShape;
use latent_graph::ir::{AttentionPath, KvLayer, KvLayerKind, Node};
use latent_types::CacheType;
use std::ops::Range;
use std::sync::Arc;

const LATENTS: &str = include_str!("latents.wgsl");
const CACHE: &str = "
@group(0) @binding(3) var<storage, read> cache: array<u32>;
";

/// Maximum positions whose keys and values are expanded per pass.
// More are not faster.
const MAX_AT_ONCE: u64 = 4096;

/// Attention to an expanded KV cache.
struct AttendHeads {
    flash: FlashAttention,
    kv_layer: usize,
}

impl MultiPass for AttendHeads {
    type ExpansionPass<'s> = TaskRange;

    fn passes<'s>(
        &'s self,
        step: &'s StepData,
        _rows: (&Batch, usize),
        path: AttentionPath,
    ) -> impl Iterator<Item = TaskRange> {
        step.by_head(path).flat_map(|tasks| self.flash.pieces(tasks, tasks.kv_len))
    }

    fn record_pass(
        &self,
        run: &mut StageRun<'_>,
        _path: AttentionPath,
        tasks: TaskRange,
    ) -> Result<(), GpuError> {
        let kv = [ShaderBinding::from(run.kv.layer(run.first_kv_layer + self.kv_layer))];
        // Cached keys need no expansion, so that one range has all of them.
        self.flash.record(run, tasks, &(0..tasks.kv_len), &kv);
        Ok(())
    }
}

/// Attention to keys and values that are expanded from cached latents.
struct AttendExpanded {
    flash: FlashAttention,
    gather: Arc<ShaderPipeline>,
    keys: HeadProducts,
    values: HeadProducts,
    kv_layer: usize,
    row_width: u32,
    /// Positions per pass: their keys and values fit scratch memory.
    at_once: usize,
}

/// Queries and keys that are submitted together.
struct Pass<'s> {
    span: &'s SpanTasks,
    positions: Range<usize>,
    tasks: TaskRange,
    /// Whether this pass must expand the positions: it is the first one with them.
    expands: bool,
}

impl MultiPass for AttendExpanded {
    type ExpansionPass<'s> = Pass<'s>;

    /// The spans on a path, cut into ranges of positions that fit scratch memory, in order. The
    /// queries of each range are cut into portions.
    fn passes<'s>(
        &'s self,
        step: &'s StepData,
        _rows: (&Batch, usize),
        path: AttentionPath,
    ) -> impl Iterator<Item = Pass<'s>> {
        let at_once = self.at_once;
        let ranges = step.spans(path).flat_map(move |span| {
            let firsts = (0..span.kv_len).step_by(at_once);
            firsts.map(move |first| (span, first..span.kv_len.min(first + at_once)))
        });
        ranges.flat_map(|(span, positions)| {
            // Queries before the first of these positions do not attend to any of them.
            let all = span.by_head.not_before(span.past, positions.start);
            let pieces = self.flash.pieces(all, positions.len());
            pieces.map(move |tasks| Pass {
                span,
                positions: positions.clone(),
                tasks,
                expands: tasks.at == all.at,
            })
        })
    }

    fn record_pass(
        &self,
        run: &mut StageRun<'_>,
        _path: AttentionPath,
        pass: Pass<'_>,
    ) -> Result<(), GpuError> {
        // Later passes with the same positions find them in scratch memory: no other pass comes
        // between.
        if pass.expands {
            self.expand(run, pass.span, &pass.positions)?;
        }
        let kv = [0, 1, 2].map(|scratch| ShaderBinding::from(&run.memory.scratch[scratch]));
        self.flash.record(run, pass.tasks, &pass.positions, &kv);
        Ok(())
    }
}

impl AttendExpanded {
    /// Expands the keys and values of some positions of a span.
    fn expand(
        &self,
        run: &mut StageRun<'_>,
        span: &SpanTasks,
        positions: &Range<usize>,
    ) -> Result<(), GpuError> {
        let rows = positions.len();
        let kv = run.kv.layer(run.first_kv_layer + self.kv_layer);
        let bindings = [run.step_buffer.into(), ShaderBinding::from(&run.memory.scratch[0]), kv.into()];
        let params = [positions.start as u32, rows as u32, span.blocks];
        run.commands.call(&self.gather, bindings, &params, grid(rows * self.row_width as usize, 256));
        let latents = ShaderOperand {
            home: ValueBuffer::Scratch(0),
            offset: 0,
            row_stride: self.row_width,
            head_stride: 0,
            heads: 1,
            width: self.row_width,
        };
        // All heads read the same latents, so `latents` has a head stride of 0.
        for (scratch, products) in [(1, &self.keys), (2, &self.values)] {
            let (heads, width) = (products.heads() as u32, products.outputs() as u32);
            let home = ValueBuffer::Scratch(scratch);
            let y = ShaderOperand {
                home,
                offset: 0,
                row_stride: heads * width,
                head_stride: width,
                heads,
                width,
            };
            products.record(run, 0..rows, [&latents, &y], 0..products.heads())?;
        }
        Ok(())
    }
}

/// Number of elements of a latent row, and of the keys and the values that it expands to.
fn widths(sizes: &ScratchLimits<'_>, rows: &KvLayer) -> [usize; 3] {
    let a = &sizes.config.attention;
    [rows.width, a.heads * a.nope, a.heads * a.v]
}

/// Positions per pass: whole KV blocks whose keys and values fit scratch memory.
fn at_once(sizes: &ScratchLimits<'_>, rows: &KvLayer) -> usize {
    // At least 1, since it is a divisor.
    let widest = widths(sizes, rows).into_iter().fold(1, usize::max);
    let blocks = sizes.scratch.min(sizes.max_buffer) / (4 * widest as u64) / KV_BLOCK as u64;
    blocks.clamp(1, MAX_AT_ONCE / KV_BLOCK as u64) as usize * KV_BLOCK
}

/// Bytes of scratch buffers, and rows that are expanded per pass.
pub(super) fn needs(sizes: &ScratchLimits<'_>, rows: &KvLayer) -> ([u64; SCRATCHES], usize) {
    let [.., states] = flash::scratch(sizes);
    if rows.kind == KvLayerKind::Expanded {
        // Keys and values are read from the cache itself.
        return ([0, 0, 0, states], 0);
    }
    let at_once = at_once(sizes, rows);
    let [latents, keys, values] = widths(sizes, rows).map(|width| 4 * (at_once * width) as u64);
    ([latents, keys, values, states], at_once)
}

/// The shader that gathers latent rows from the cache.
fn shader(rows: &KvLayer, cache: CacheType) -> Result<Shader, BackendError> {
    let shader = Shader::new("latents", LATENTS).after(CACHE).after(reading(cache));
    with_rows(with_slots(shader), rows, cache)
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders(a: &AttentionShape) -> Vec<Shader> {
    let rows = KvLayer::of_rows(KvLayerKind::Latent, 0, a.latent_width(), a.rope);
    crate::cache::CACHE_TYPES.map(|ty| shader(&rows, ty).unwrap()).to_vec()
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let a = compiler.config.attention;
    let (kv_layer, rows) = compiler.kv_layer(node)?;
    let rows = rows.clone();
    let (q, r) = (compiler.input(node, 0)?, compiler.input_at(node, "q_rope")?);
    let operands = (q, r, compiler.cut(compiler.output(node, 0)?, a.v)?);
    if rows.kind == KvLayerKind::Expanded {
        let flash = FlashAttention::new(compiler, node, KvSource::Cache, operands)?;
        return Ok(Box::new(AttendHeads { flash, kv_layer }));
    }
    // Files have either `kv_b`, or `k_b` and `v_b`.
    let (Some(keys), Some(values)) = (slot(node, &["k_b", "kv_b"]), slot(node, &["v_b", "kv_b"])) else {
        return internal("attend_expanded without W_UK and W_UV".into());
    };
    let flash = FlashAttention::new(compiler, node, KvSource::Expanded, operands)?;
    let keys = HeadProducts::new(compiler, keys, LatentProjection::Keys)?;
    let values = HeadProducts::new(compiler, values, LatentProjection::Values)?;
    let gather = compiler.device.pipeline(&shader(&rows, compiler.cache_type)?)?;
    let (row_width, at_once) = (count(rows.width)?, at_once(&compiler.sizes(), &rows));
    Ok(Box::new(AttendExpanded { flash, gather, keys, values, kv_layer, row_width, at_once }))
}
