//! Products of whole rows with one weight or several.

use crate::compile::Compiler;
use crate::error::GpuError;
use crate::matmul::rows::matmul;
use crate::matmul::weight::Weight;
use crate::run::{Operation, Run};
use crate::values::Operand;
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node};
use std::sync::Arc;

struct Linear {
    x: Operand,
    products: Vec<(Arc<Weight>, Operand)>,
}

impl Operation for Linear {
    fn record(&self, run: &mut Run<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            let x = run.matrix(&self.x, rows.start);
            for (weight, y) in &self.products {
                let y = run.matrix(y, rows.start);
                matmul(run.commands, weight, &x, &y, rows.len())?;
            }
        }
        Ok(())
    }
}

pub(super) fn compile(compiler: &mut Compiler<'_>, node: &Node) -> Result<Box<dyn Operation>, BackendError> {
    let flat = |x: Operand| compiler.cut(x, x.row_width() as usize);
    let products = node
        .weights
        .iter()
        .enumerate()
        .map(|(i, (_, id))| Ok((compiler.product_weight(*id)?, flat(compiler.output(node, i)?)?)));
    let products = products.collect::<Result<_, BackendError>>()?;
    Ok(Box::new(Linear { x: flat(compiler.input(node, 0)?)?, products }))
}
