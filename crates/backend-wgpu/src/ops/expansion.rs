//! Attention to keys and values of each head: read from the cache, or expanded from latents for as many heads at a time as scratch memory holds.

use super::attention::{Attention, Call, Source};
use super::head_products::{HeadProducts, Projection};
use crate::cache::{reading, with_rows, with_slots};
use crate::commands::{Binding, grid};
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::memory::SCRATCH;
use crate::pipeline::Pipeline;
use crate::run::{Operation, Run};
use crate::shader::Shader;
use crate::step_data::SpanTasks;
use crate::values::{Home, Operand, count, internal};
use crate::weights::slot;
use latent_backend::BackendError;
use latent_graph::config::AttentionShape;
use latent_graph::ir::{AttentionPath, KvLayerKind, Node};
use std::sync::Arc;

const LATENTS: &str = include_str!("latents.wgsl");
const CACHE: &str = "
@group(0) @binding(3) var<storage, read> cache: array<u32>;
";

/// Attention to rows of heads in the cache.
struct AttendHeads {
    attention: Attention,
    kv_layer: usize,
    heads: usize,
}

impl Operation for AttendHeads {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let kv = [Binding::from(run.kv.layer(run.first_kv_layer + self.kv_layer))];
        let lists: Vec<_> = run.step.by_head(path).collect();
        for tasks in lists {
            self.attention.record(run, &Call { tasks, first_head: 0, heads: self.heads }, &kv);
        }
        Ok(())
    }
}

/// What attention to expanded latents takes of the scratch buffers for a sequence of so many rows: latents, keys and values, the last two for as
/// many heads as are expanded at a time.
pub(crate) fn scratch_bytes(kv_len: usize, shape: &AttentionShape) -> [u64; 3] {
    let heads = heads_at_once(kv_len, shape);
    let bytes = |width: usize| 4 * kv_len as u64 * width as u64;
    [bytes(shape.latent_width()), bytes(heads * shape.nope), bytes(heads * shape.v)]
}

fn heads_at_once(kv_len: usize, shape: &AttentionShape) -> usize {
    let head = 4 * kv_len.max(1) as u64 * shape.nope.max(shape.v) as u64;
    (SCRATCH / head.max(1)).clamp(1, shape.heads as u64) as usize
}

/// Attention to keys and values that are expanded from cached latents.
struct AttendExpanded {
    attention: Attention,
    gather: Arc<Pipeline>,
    keys: HeadProducts,
    values: HeadProducts,
    kv_layer: usize,
    shape: AttentionShape,
    row_width: u32,
}

impl Operation for AttendExpanded {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let step = run.step;
        step.spans(path).try_for_each(|span| self.span(run, span))
    }
}

impl AttendExpanded {
    fn span(&self, run: &mut Run<'_>, span: &SpanTasks) -> Result<(), GpuError> {
        let kv_len = span.kv_len;
        let kv = run.kv.layer(run.first_kv_layer + self.kv_layer);
        let bindings = [run.step_buffer.into(), Binding::from(&run.memory.scratch[0]), kv.into()];
        let groups = grid(kv_len * self.row_width as usize, 256);
        run.commands.call(&self.gather, bindings, &[0, kv_len as u32, span.blocks], groups);
        let latents = Operand {
            home: Home::Scratch(0),
            offset: 0,
            row_stride: self.row_width,
            head_stride: 0,
            heads: 1,
            width: self.row_width,
        };
        let at_once = heads_at_once(kv_len, &self.shape);
        for first in (0..self.shape.heads).step_by(at_once) {
            let heads = at_once.min(self.shape.heads - first);
            for (scratch, products) in [(1, &self.keys), (2, &self.values)] {
                let width = products.outputs() as u32;
                let y = Operand {
                    home: Home::Scratch(scratch),
                    offset: 0,
                    row_stride: heads as u32 * width,
                    head_stride: width,
                    heads: heads as u32,
                    width,
                };
                products.record(run, 0..kv_len, [&latents, &y], first..first + heads)?;
            }
            let kv = [0, 1, 2].map(|scratch| Binding::from(&run.memory.scratch[scratch]));
            self.attention.record(run, &Call { tasks: span.by_head, first_head: first, heads }, &kv);
        }
        Ok(())
    }
}

pub(super) fn compile(compiler: &mut Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
    let a = compiler.config.attention;
    let (kv_layer, rows) = compiler.kv_layer(node)?;
    let (kind, row_width) = (rows.kind, rows.width);
    let (q, r) = (compiler.input(node, 0)?, compiler.input_at(node, "q_rope")?);
    let y = compiler.cut(compiler.output(node, 0)?, a.v)?;
    if kind == KvLayerKind::Expanded {
        let attention = Attention::new(compiler, node, Source::Heads, q, r, y)?;
        return Ok(Box::new(AttendHeads { attention, kv_layer, heads: a.heads }));
    }
    let (Some(keys), Some(values)) = (slot(node, &["k_b", "kv_b"]), slot(node, &["v_b", "kv_b"])) else {
        return internal("attend_expanded without W_UK and W_UV".into());
    };
    let attention = Attention::new(compiler, node, Source::Expanded, q, r, y)?;
    let keys = HeadProducts::new(compiler, keys, Projection::Keys)?;
    let values = HeadProducts::new(compiler, values, Projection::Values)?;
    let gather = Shader::new("latents", LATENTS).after(CACHE).after(reading(compiler.cache_type));
    let gather = with_rows(with_slots(gather), rows, compiler.cache_type)?;
    let gather = compiler.device.pipeline(&gather)?;
    compiler.needs.expands = true;
    let row_width = count(row_width)?;
    Ok(Box::new(AttendExpanded { attention, gather, keys, values, kv_layer, shape: a, row_width }))
}
