//! Weight absorption: queries to latent space and results out of it, as products per head.

use super::elementwise::Elementwise;
use super::head_products::{HeadProducts, LatentProjection};
use super::rope::rotate;
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::run::{GpuOperation, StageRun};
use crate::values::{ShaderOperand, count, internal};
use crate::weights::slot;
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node};
use latent_types::Arithmetic;

/// Products of each head with its matrix, and an optional copy of the rope part next to the
/// results.
struct HeadProductsOp {
    products: HeadProducts,
    x: ShaderOperand,
    y: ShaderOperand,
    copy: Option<Box<dyn GpuOperation>>,
}

impl GpuOperation for HeadProductsOp {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            self.products.record(run, rows, [&self.x, &self.y], 0..self.products.heads())?;
        }
        self.copy.iter().try_for_each(|copy| copy.record(run, path))
    }

    fn arithmetic(&self, rows: usize) -> Arithmetic {
        self.products.arithmetic(rows)
    }
}

/// Compiles `[W_UKᵀ q_nope | q_rope]`.
pub(super) fn absorb_query(
    compiler: &Compiler<'_>,
    node: &Node,
) -> Result<Box<dyn GpuOperation>, BackendError> {
    let Some(id) = slot(node, &["k_b", "kv_b"]) else { return internal("absorb_k without W_UK".into()) };
    let products = HeadProducts::new(compiler, id, LatentProjection::KeysTransposed)?;
    let (x, y) = (compiler.input(node, 0)?, compiler.output(node, 0)?);
    let latent = count(compiler.config.attention.kv_lora_rank)?;
    let rope = compiler.input_at(node, "q_rope")?;
    let copy = |rope: ShaderOperand| -> Result<Box<dyn GpuOperation>, BackendError> {
        let y = y.part(latent, rope.width);
        // Rotating writes to another value anyway, so it replaces the copy.
        if node.prologue.rope {
            return rotate(compiler, rope, y);
        }
        Ok(Box::new(Elementwise::copy(compiler, rope, y)?))
    };
    let copy = rope.map(copy).transpose()?;
    Ok(Box::new(HeadProductsOp { products, x, y: y.part(0, latent), copy }))
}

/// Compiles W_UV õ.
pub(super) fn project_value(
    compiler: &Compiler<'_>,
    node: &Node,
) -> Result<Box<dyn GpuOperation>, BackendError> {
    let Some(id) = slot(node, &["v_b", "kv_b"]) else { return internal("absorb_v without W_UV".into()) };
    let products = HeadProducts::new(compiler, id, LatentProjection::Values)?;
    let v = compiler.config.attention.v;
    let (x, y) = (compiler.input(node, 0)?, compiler.cut(compiler.output(node, 0)?, v)?);
    Ok(Box::new(HeadProductsOp { products, x, y, copy: None }))
}
