//! y = x · Wᵀ with a matrix for each head.

use crate::commands::grid;
use crate::compile::Compiler;
use crate::pipeline::{Pipeline, Shader};
use crate::run::Run;
use crate::values::Operand;
use crate::weights::DeviceWeight;
use latent_backend::BackendError;
use std::ops::Range;
use std::sync::Arc;

/// Products of heads with one weight.
pub(super) struct HeadProducts {
    pipeline: Arc<Pipeline>,
    weight: Arc<DeviceWeight>,
}

impl HeadProducts {
    pub(super) fn new(
        compiler: &Compiler<'_>,
        weight: Arc<DeviceWeight>,
    ) -> Result<HeadProducts, BackendError> {
        let shader = Shader::new("head_products", include_str!("head_products.wgsl"));
        Ok(HeadProducts { pipeline: compiler.device.pipeline(&shader)?, weight })
    }

    /// Results of a head.
    pub(super) fn outputs(&self) -> usize {
        self.weight.outputs
    }

    /// Heads.
    pub(super) fn heads(&self) -> usize {
        self.weight.matrices
    }

    /// Adds its calls for some of the heads, one for each buffer of the weight that has some: the first of them is that at the operands' offsets, which
    /// may wrap around.
    pub(super) fn record(
        &self,
        run: &mut Run<'_>,
        rows: Range<usize>,
        [x, y]: [&Operand; 2],
        heads: Range<usize>,
    ) {
        for chunk in &self.weight.chunks {
            let here = heads.start.max(chunk.matrices.start)..heads.end.min(chunk.matrices.end);
            if here.is_empty() {
                continue;
            }
            let from_head = |operand: &Operand| {
                let [offset, row, head] = operand.address();
                [offset.wrapping_add((here.start - heads.start) as u32 * head), row, head]
            };
            let (outputs, inputs) = (self.weight.outputs, self.weight.inputs);
            let first_matrix = here.start - chunk.matrices.start;
            let sizes = [rows.start, rows.len(), here.len(), first_matrix, outputs, inputs];
            let mut params: Vec<u32> = sizes.map(|size| size as u32).to_vec();
            params.extend([from_head(x), from_head(y)].concat());
            let bindings = [run.bind(x), (&chunk.buffer).into(), run.bind(y)];
            let groups = grid(rows.len() * here.len() * outputs.div_ceil(64), 1);
            run.commands.call(&self.pipeline, bindings, &params, groups);
        }
    }
}
