//! RMSNorm of rows or of their heads.

use crate::commands::grid;
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, StageRun};
use crate::shader::{Shader, ShaderConstant};
use crate::values::{ShaderOperand, internal};
use crate::weights::DeviceVector;
use latent_backend::BackendError;
use latent_graph::ir::{AttentionPath, Node};
use std::sync::Arc;

const NORM: &str = include_str!("norm.wgsl");

struct RmsNorm {
    pipeline: Arc<ShaderPipeline>,
    weight: Arc<DeviceVector>,
    x: ShaderOperand,
    y: ShaderOperand,
}

impl GpuOperation for RmsNorm {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            let mut params = vec![rows.start as u32, rows.len() as u32, self.x.heads];
            params.extend([self.x.address(), self.y.address()].concat());
            let bindings = [run.bind(&self.x), (&self.weight.buffer).into(), run.bind(&self.y)];
            let groups = grid(rows.len() * self.x.heads as usize, 1);
            run.commands.call(&self.pipeline, bindings, &params, groups);
        }
        Ok(())
    }
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let weight = compiler.vector(node)?;
    let x = compiler.cut(compiler.input(node, 0)?, weight.len)?;
    let y = compiler.cut(compiler.output(node, 0)?, weight.len)?;
    // WebGPU does not allow a buffer to be bound for reading and for writing in one call.
    if x.home == y.home {
        return internal("a norm reads and writes one buffer".into());
    }
    let slot = node.weights.first().map_or("", |(_, id)| &compiler.plan.ir.weight(*id).slot);
    let pipeline = compiler.device.pipeline(&shader(weight.len, compiler.config.norm_eps(slot)))?;
    Ok(Box::new(RmsNorm { pipeline, weight, x, y }))
}

/// The shader for rows or heads of `width` elements.
pub(super) fn shader(width: usize, eps: f64) -> Shader {
    with_norm(Shader::new("rms_norm", include_str!("rms_norm.wgsl")), width, eps)
}

/// Adds the function `norm_factor(own: f32, thread: u32) -> f32` to a shader of `THREADS` threads.
pub(super) fn with_norm(shader: Shader, width: usize, eps: f64) -> Shader {
    shader.after(NORM).count("NORM_WIDTH", width).with("EPS", ShaderConstant::Number(eps as f32))
}
