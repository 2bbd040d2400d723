//! The router: selects the experts of each row.

use crate::commands::grid;
use crate::compile::Compiler;
use crate::error::GpuError;
use crate::pipeline::ShaderPipeline;
use crate::run::{GpuOperation, StageRun};
use crate::shader::{Shader, ShaderConstant};
use crate::values::{ShaderOperand, internal};
use crate::weights::DeviceVector;
use latent_backend::BackendError;
#[cfg(test)]
use latent_graph::config::RouterSpec;
use latent_graph::config::{Gating, GroupMask, GroupScore, MoeShape};
use latent_graph::ir::{AttentionPath, Node};
use std::sync::Arc;

const NO_BIAS: &str = "
fn bias(expert: u32) -> f32 { return 0.0; }
";
const BIAS: &str = "
@group(0) @binding(4) var<storage, read> biases: array<f32>;
fn bias(expert: u32) -> f32 { return biases[expert]; }
";
const PLAIN: &str = "
fn gate(x: f32) -> f32 { return x; }
";
const SIGMOID: &str = "
fn gate(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }
";
// ln(1 + eˣ), in a form in which eˣ does not overflow for a large x.
const SQRT_SOFTPLUS: &str = "
fn gate(x: f32) -> f32 { return sqrt(max(x, 0.0) + log(1.0 + exp(-abs(x)))); }
";

struct Route {
    pipeline: Arc<ShaderPipeline>,
    bias: Option<Arc<DeviceVector>>,
    x: ShaderOperand,
    ids: ShaderOperand,
    weights: ShaderOperand,
}

impl GpuOperation for Route {
    fn record(&self, run: &mut StageRun<'_>, path: AttentionPath) -> Result<(), GpuError> {
        for rows in run.ranges(path) {
            let (x, ids, weights) = (&self.x, &self.ids, &self.weights);
            let params =
                [rows.start as u32, rows.len() as u32, x.offset, x.row_stride, ids.offset, weights.offset];
            let mut bindings = vec![run.bind(x), run.bind(ids), run.bind(weights)];
            bindings.extend(self.bias.iter().map(|bias| (&bias.buffer).into()));
            run.commands.call(&self.pipeline, bindings, &params, grid(rows.len(), 1));
        }
        Ok(())
    }
}

pub(super) fn compile(compiler: &Compiler<'_>, node: &Node) -> Result<Box<dyn GpuOperation>, BackendError> {
    let Some(moe) = compiler.config.moe else { return internal("routing without experts".into()) };
    let bias = match node.weights.is_empty() {
        true => None,
        false => Some(compiler.vector(node)?),
    };
    Ok(Box::new(Route {
        pipeline: compiler.device.pipeline(&shader(&moe, bias.is_some()))?,
        bias,
        x: compiler.cut(compiler.input(node, 0)?, moe.experts)?,
        ids: compiler.output(node, 0)?,
        weights: compiler.output(node, 1)?,
    }))
}

/// The shader of a router. It holds the scores of all experts in workgroup memory twice, which
/// [`MAX_EXPERTS`](crate::matmul::tiles::MAX_EXPERTS) bounds.
fn shader(moe: &MoeShape, bias: bool) -> Shader {
    let router = &moe.router;
    let gate = match router.gating {
        Gating::Softmax | Gating::SoftmaxOfSelected => PLAIN,
        Gating::Sigmoid => SIGMOID,
        Gating::SqrtSoftplus => SQRT_SOFTPLUS,
    };
    // A single group cannot be masked.
    let groups_used = if router.groups > 1 { router.groups_used } else { router.groups };
    Shader::new("route", include_str!("route.wgsl"))
        .after(gate)
        .after(if bias { BIAS } else { NO_BIAS })
        .count("EXPERTS", moe.experts)
        .count("USED", moe.num_experts_per_tok)
        .count("GROUPS", router.groups)
        .count("GROUPS_USED", groups_used)
        .with("TOP_TWO", ShaderConstant::Flag(router.group_score == GroupScore::TopTwoSum))
        // Not −∞: shaders may be compiled as if infinities did not occur.
        .with(
            "MASKED",
            ShaderConstant::Number(if router.group_mask == GroupMask::Zero { 0.0 } else { -3.0e38 }),
        )
        .with("SOFTMAX", ShaderConstant::Flag(router.gating == Gating::Softmax))
        .with("OF_SELECTED", ShaderConstant::Flag(router.gating == Gating::SoftmaxOfSelected))
        .with("NORMALISE", ShaderConstant::Flag(router.normalise))
        .with("NORM_FLOOR", ShaderConstant::Number(router.norm_floor as f32))
        .with("SCALE", ShaderConstant::Number(router.scale as f32))
}

/// All shaders of this file, for the maximum number of experts.
#[cfg(test)]
pub(super) fn shaders(moe: &MoeShape) -> Vec<Shader> {
    use crate::matmul::tiles::MAX_EXPERTS;
    let mut all = Vec::new();
    for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxOfSelected, Gating::SqrtSoftplus] {
        for (groups, group_score) in [(1, GroupScore::Max), (8, GroupScore::Max), (8, GroupScore::TopTwoSum)]
        {
            for flag in [false, true] {
                let router =
                    RouterSpec { gating, groups, groups_used: 4, group_score, normalise: flag, ..moe.router };
                let moe = MoeShape { experts: MAX_EXPERTS, num_experts_per_tok: 16, router, ..*moe };
                all.push(shader(&moe, flag));
            }
        }
    }
    all
}
