//! Gathers the rows whose logits are wanted.

use crate::commands::grid;
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, StageRun};
use crate::shader::Shader;
use crate::values::ShaderOperand;
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node};
use std::sync::Arc;

struct RowGather {
    pipeline: Arc<ShaderPipeline>,
    x: ShaderOperand,
    y: ShaderOperand,
}

impl GpuOperation for RowGather {
    fn record(&self, run: &mut StageRun<'_>, _path: AttentionPath) -> Result<(), GpuError> {
        let (x, y, width) = (&self.x, &self.y, self.x.row_width());
        // A head's stage runs for a range of the wanted rows, at most `LM_HEAD_ROWS`.
        let wanted = run.step.wanted + run.wanted.as_ref().map_or(0, |wanted| wanted.start) as u32;
        let params = [run.rows as u32, width, wanted, x.offset, x.row_stride, y.offset, y.row_stride];
        let bindings = [run.step_buffer.into(), run.bind(x), run.bind(y)];
        run.commands.call(&self.pipeline, bindings, &params, grid(run.rows * width as usize, 256));
        Ok(())
    }
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let flat = |x: ShaderOperand| compiler.cut(x, x.row_width() as usize);
    let (x, y) = (flat(compiler.input(node, 0)?)?, flat(compiler.output(node, 0)?)?);
    Ok(Box::new(RowGather { pipeline: compiler.device.pipeline(&shader())?, x, y }))
}

pub(super) fn shader() -> Shader {
    Shader::new("gather_rows", include_str!("gather.wgsl"))
}
