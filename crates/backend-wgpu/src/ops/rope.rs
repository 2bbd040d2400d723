//! Rotation by position (RoPE), in place or into another value.

use crate::cache::with_pairs;
use crate::commands::{ShaderBinding, grid};
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, StageRun};
use crate::shader::Shader;
use crate::values::{ShaderOperand, internal};
use latent_backend::BackendError;
use latent_graph::config::RopePairs;
use latent_graph::ir::{AttentionPath, Node};
use std::sync::Arc;

const IN_PLACE: &str = "
fn element(source: u32, to: u32) -> f32 { return y[to]; }
";
const COPY: &str = "
@group(0) @binding(3) var<storage, read> x: array<f32>;
fn element(source: u32, to: u32) -> f32 { return x[source]; }
";

struct Rope {
    pipeline: Arc<ShaderPipeline>,
    x: ShaderOperand,
    y: ShaderOperand,
}

impl GpuOperation for Rope {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        let (x, y) = (&self.x, &self.y);
        for rows in run.ranges(path) {
            let mut params = vec![rows.start as u32, rows.len() as u32, x.heads, run.step.angles];
            params.extend([x.address(), y.address()].concat());
            let mut bindings: Vec<ShaderBinding> = vec![run.step_buffer.into(), run.bind(y)];
            if x.home != y.home {
                bindings.push(run.bind(x));
            }
            let pairs = rows.len() * x.row_width() as usize / 2;
            run.commands.call(&self.pipeline, bindings, &params, grid(pairs, 64));
        }
        Ok(())
    }
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let (x, y) = (compiler.input(node, 0)?, compiler.output(node, 0)?);
    rotate(compiler, x, y)
}

/// Rotates the heads of x into y.
pub(super) fn rotate(
    compiler: &Compiler<'_>,
    x: ShaderOperand,
    y: ShaderOperand,
) -> Result<Box<dyn GpuOperation>, BackendError> {
    // In place, the shader reads through the result's binding: WebGPU does not allow a buffer to be
    // bound for reading and for writing in one call.
    if x.home == y.home && x.address() != y.address() {
        return internal("a rotation reads and writes different parts of one buffer".into());
    }
    let pairs = (x.width as usize / 2, compiler.rotation.pairs());
    let pipeline = compiler.device.pipeline(&shader(x.home == y.home, pairs))?;
    Ok(Box::new(Rope { pipeline, x, y }))
}

fn shader(in_place: bool, pairs: (usize, RopePairs)) -> Shader {
    let shader = Shader::new("rope", include_str!("rope.wgsl"));
    with_pairs(shader.after(if in_place { IN_PLACE } else { COPY }), pairs)
}

/// All shaders of this file.
#[cfg(test)]
pub(super) fn shaders() -> Vec<Shader> {
    let pairs = [RopePairs::Interleaved, RopePairs::NeoX];
    pairs.into_iter().flat_map(|kind| [false, true].map(|in_place| shader(in_place, (32, kind)))).collect()
}
