//! Products of rows with one or several dense weights, with an epilogue.

use super::elementwise::Elementwise;
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::matmul::product::ProductEpilogue;
use crate::matmul::rows::matmul;
use crate::matmul::weight::DeviceWeight;
use crate::run::{GpuOperation, StageRun};
use crate::values::{ShaderOperand, internal};
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Epilogue, Node};
use latent_types::Arithmetic;
use std::sync::Arc;

/// A product of the rows with one weight.
struct LinearProduct {
    weight: Arc<DeviceWeight>,
    y: ShaderOperand,
    keep: (ProductEpilogue, f32),
}

struct Linear {
    /// Copies the value to which the product is added, unless it is already in the result.
    base: Option<Elementwise>,
    x: ShaderOperand,
    products: Vec<LinearProduct>,
}

impl GpuOperation for Linear {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        self.base.iter().try_for_each(|base| base.record(run, path))?;
        for rows in run.ranges(path) {
            let x = run.matrix(&self.x, rows.start);
            for LinearProduct { weight, y, keep } in &self.products {
                let y = run.matrix(y, rows.start);
                matmul(run.commands, weight, &x, &y, rows.len(), *keep)?;
            }
        }
        Ok(())
    }

    fn arithmetic(&self, rows: usize) -> Arithmetic {
        self.products.first().map_or(Arithmetic::F32, |product| product.weight.arithmetic(rows))
    }
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let flat = |x: ShaderOperand| compiler.cut(x, x.row_width() as usize);
    let result = |i| flat(compiler.output(node, i)?);
    let x = flat(compiler.input(node, 0)?)?;
    let mut base = None;
    // The result and the epilogue of each weight.
    let store = (ProductEpilogue::Store, 0.0);
    let kept = match (node.epilogue, node.weights.len()) {
        (Epilogue::None, count) => (0..count).map(|i| Ok((result(i)?, store))).collect(),
        (Epilogue::Relu2, 1) => result(0).map(|y| vec![(y, (ProductEpilogue::Relu2, 0.0))]),
        // The gate is stored in the result. The epilogue of up reads it there.
        (Epilogue::SiluMul, 2) => result(0).map(|y| vec![(y, store), (y, (ProductEpilogue::SiluMul, 0.0))]),
        (Epilogue::AddTo(factor), 1) => {
            let (y, sum) = (result(0)?, flat(compiler.input(node, node.inputs.len() - 1)?)?);
            if (sum.home, sum.address()) != (y.home, y.address()) {
                base = Some(Elementwise::copy(compiler, sum, y)?);
            }
            Ok(vec![(y, (ProductEpilogue::Add, factor as f32))])
        }
        (epilogue, count) => internal(format!("a product with {count} weights and {epilogue:?}")),
    }?;
    let products = node.weights.iter().zip(kept).map(|((_, id), (y, keep))| {
        let weight = compiler.product_weight(*id)?;
        Ok(LinearProduct { weight, y, keep })
    });
    let products = products.collect::<Result<_, BackendError>>()?;
    Ok(Box::new(Linear { base, x, products }))
}
