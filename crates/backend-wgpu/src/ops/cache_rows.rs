//! Rows of the KV cache are written.

use super::head_products::{HeadProducts, Projection};
use crate::cache::{packing, row_words, with_rows};
use crate::commands::{Binding, grid};
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::pipeline::Pipeline;
use crate::run::{Operation, Run};
use crate::shader::Shader;
use crate::values::{Home, Operand, count, internal};
use crate::weights::slot;
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node};
use latent_types::CacheType;
use std::ops::Range;
use std::sync::Arc;

const WORDS: &str = include_str!("store.wgsl");
const ROWS: &str = include_str!("store_int8.wgsl");
const LATENT: &str = "
fn element(row: u32, i: u32) -> f32 {
    if (i < LATENT) { return x[params.x + row * params.x_row + i]; }
    return k[params.k + row * params.k_row + i - LATENT];
}
";
const EXPANDED: &str = "
@group(0) @binding(5) var<storage, read> v: array<f32>;
fn element(row: u32, i: u32) -> f32 {
    let head = i / HEAD_WIDTH;
    let within = i % HEAD_WIDTH;
    if (within < NOPE) { return x[params.x + row * params.x_row + head * params.x_head + within]; }
    if (within < NOPE + ROPE) { return k[params.k + row * params.k_row + within - NOPE]; }
    return v[params.v + row * params.v_row + head * params.v_head + within - NOPE - ROPE];
}
";

/// What workgroups share.
enum Groups {
    /// Rows: one each, since a scale depends on all elements of a row.
    Rows,
    /// Words of rows, which have so many.
    Words(usize),
}

/// Where the elements of a row come from.
struct Elements {
    name: &'static str,
    text: &'static str,
    counts: Vec<(&'static str, usize)>,
}

/// What is stored of each row.
struct Store {
    pipeline: Arc<Pipeline>,
    groups: Groups,
    kv_layer: usize,
}

impl Store {
    /// `elements` has `fn element(row: u32, i: u32) -> f32`.
    fn new(compiler: &Compiler<'_>, node: &Node, elements: Elements) -> Result<Store, BackendError> {
        let (kv_layer, rows) = compiler.kv_layer(node)?;
        let ty = compiler.cache_type;
        let (text, groups) = match ty {
            CacheType::Int8 => (Shader::new(elements.name, ROWS), Groups::Rows),
            _ => (Shader::new(elements.name, WORDS).after(packing(ty)), Groups::Words(row_words(rows, ty)?)),
        };
        let shader = elements
            .counts
            .iter()
            .fold(text.after(elements.text), |shader, (name, value)| shader.count(name, *value));
        let pipeline = compiler.device.pipeline(&with_rows(shader, rows, ty)?)?;
        Ok(Store { pipeline, groups, kv_layer })
    }

    fn record(&self, run: &mut Run<'_>, rows: Range<usize>, [x, k]: [Operand; 2], v: Option<Operand>) {
        let kv = run.kv.layer(run.first_kv_layer + self.kv_layer);
        let mut bindings: Vec<Binding> = vec![run.step_buffer.into(), kv.into(), run.bind(&x), run.bind(&k)];
        bindings.extend(v.as_ref().map(|v| run.bind(v)));
        let mut params = vec![rows.start as u32, rows.len() as u32, run.step.slots];
        params.extend(x.address());
        params.extend([k.offset, k.row_stride]);
        params.extend(v.map_or([0; 3], |v| v.address()));
        let groups = match self.groups {
            Groups::Rows => grid(rows.len(), 1),
            Groups::Words(row_words) => grid(rows.len() * row_words, 64),
        };
        run.commands.call(&self.pipeline, bindings, &params, groups);
    }
}

struct LatentStore {
    store: Store,
    latent: Operand,
    /// The rotated key; of a model without one, anything that can be bound.
    key: Operand,
}

impl Operation for LatentStore {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            self.store.record(run, rows, [self.latent, self.key], None);
        }
        Ok(())
    }
}

/// cache[position] ← [latent | rotated key].
pub(super) fn latent(compiler: &mut Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
    let counts = vec![("LATENT", compiler.config.attention.kv_lora_rank)];
    let store = Store::new(compiler, node, Elements { name: "latent_store", text: LATENT, counts })?;
    let latent = compiler.input(node, 0)?;
    let key = compiler.input_at(node, "k_rope")?.unwrap_or(latent);
    Ok(Box::new(LatentStore { store, latent, key }))
}

struct ExpandedStore {
    store: Store,
    keys: HeadProducts,
    values: HeadProducts,
    latent: Operand,
    key: Operand,
    rows_at_once: usize,
}

impl Operation for ExpandedStore {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for range in run.ranges(path) {
            for first in range.clone().step_by(self.rows_at_once) {
                let rows = first..range.end.min(first + self.rows_at_once);
                let x = Operand { head_stride: 0, ..self.latent };
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

/// Results of all heads of rows from `first` on, next to one another in scratch memory.
fn heads_in(scratch: usize, products: &HeadProducts, first: usize) -> Operand {
    let (heads, width) = (products.heads() as u32, products.outputs() as u32);
    let row_stride = heads * width;
    let offset = 0u32.wrapping_sub((first as u32).wrapping_mul(row_stride));
    Operand { home: Home::Scratch(scratch), offset, row_stride, head_stride: width, heads, width }
}

/// cache[position] ← per head [W_UK latent | rotated key | W_UV latent].
pub(super) fn expanded(compiler: &mut Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
    let a = compiler.config.attention;
    let (Some(keys), Some(values)) = (slot(node, &["k_b", "kv_b"]), slot(node, &["v_b", "kv_b"])) else {
        return internal("expanded_store without W_UK and W_UV".into());
    };
    let keys = HeadProducts::new(compiler, keys, Projection::Keys)?;
    let values = HeadProducts::new(compiler, values, Projection::Values)?;
    let counts = vec![("HEAD_WIDTH", a.nope + a.rope + a.v), ("NOPE", a.nope), ("ROPE", a.rope)];
    let store = Store::new(compiler, node, Elements { name: "expanded_store", text: EXPANDED, counts })?;
    let latent = compiler.input(node, 0)?;
    count(a.heads * a.nope.max(a.v))?;
    let row = 4 * (a.heads * a.nope.max(a.v)) as u64;
    let rows_at_once = (compiler.scratch / row).clamp(1, compiler.plan.max_rows as u64);
    compiler.needs.scratch([0, rows_at_once * row, rows_at_once * row, 0]);
    let key = compiler.input_at(node, "k_rope")?.unwrap_or(latent);
    let rows_at_once = rows_at_once as usize;
    Ok(Box::new(ExpandedStore { store, keys, values, latent, key, rows_at_once }))
}
